#include "hotset/trace/reader.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "hotset/trace/little_endian.h"

namespace hotset::trace {
namespace {

// Large enough that the system call costs nothing beside the decoding, small enough for the cache.
constexpr size_t kBufferBytes = 128 << 10;
// Ids that are allocated ahead of what the file is known to hold.
constexpr size_t kIdsPerChunk = kBufferBytes / sizeof(int32_t);
constexpr size_t kLookupHeadBytes = 3 * sizeof(int32_t);

}  // namespace

TraceReader::TraceReader(std::unique_ptr<ByteSource> source, std::string name)
    : source_(std::move(source)), name_(std::move(name)), buffer_(kBufferBytes) {}

Result<TraceReader> TraceReader::open(const std::string& path) {
  HOTSET_TRY(auto source, FileSource::open(path));
  return from(std::move(source), path);
}

Result<TraceReader> TraceReader::from(std::unique_ptr<ByteSource> source, std::string name) {
  TraceReader reader(std::move(source), std::move(name));
  HOTSET_RETURN_IF_ERROR(reader.read_header());
  return reader;
}

std::unexpected<Error> TraceReader::corrupt(uint64_t offset, const std::string& what) const {
  return make_error(ErrorCode::kCorrupt, "{}: byte {}: {}", name_, offset, what);
}

Status TraceReader::fill(size_t n_bytes) {
  if (available() >= n_bytes) return {};
  HOTSET_CHECK(n_bytes <= buffer_.size());
  std::memmove(buffer_.data(), buffer_.data() + begin_, available());
  buffer_offset_ += begin_;
  end_ -= begin_;
  begin_ = 0;
  while (end_ < n_bytes && !at_end_) {
    HOTSET_TRY(const size_t n_read, source_->read(std::span(buffer_).subspan(end_)));
    at_end_ = n_read == 0;
    end_ += n_read;
  }
  return {};
}

template <typename T>
Result<T> TraceReader::read_value(const char* what) {
  HOTSET_RETURN_IF_ERROR(fill(sizeof(T)));
  if (available() < sizeof(T)) {
    return corrupt(offset_bytes(), fmt::format("the file ends inside the header, in the {}", what));
  }
  const T value = load_little_endian<T>(buffer_.data() + begin_);
  begin_ += sizeof(T);
  return value;
}

Status TraceReader::read_header() {
  HOTSET_RETURN_IF_ERROR(fill(4));
  if (available() < 4 || std::memcmp(buffer_.data(), "MCT1", 4) != 0) {
    return corrupt(0, "is not a routing trace: expected it to start with \"MCT1\"");
  }
  begin_ += 4;
  HOTSET_TRY(header_.n_layer, read_value<uint32_t>("number of layers"));
  HOTSET_TRY(header_.experts_per_token, read_value<uint32_t>("experts per token"));
  HOTSET_TRY(const uint32_t n_group, read_value<uint32_t>("number of groups"));
  if (header_.n_layer < 1 || header_.n_layer > kMaxTraceLayers) {
    return corrupt(4, fmt::format("number of layers is {}, expected 1 to {}", header_.n_layer,
                                  kMaxTraceLayers));
  }
  if (n_group < 1 || n_group > header_.n_layer) {
    return corrupt(12, fmt::format("number of groups is {}, expected 1 to the {} layers", n_group,
                                   header_.n_layer));
  }
  for (uint32_t g = 0; g < n_group; ++g) {
    const uint64_t start = offset_bytes();
    TraceGroup& group = header_.groups.emplace_back();
    HOTSET_RETURN_IF_ERROR(read_group(group));
    if (Status status = validate(group, header_.n_layer); !status) {
      return corrupt(start, fmt::format("group {}: {}", g, status.error().message));
    }
  }
  if (Status status = validate(header_); !status) {
    return corrupt(4, fmt::format("header: {}", status.error().message));
  }
  group_by_layer_ = header_.group_by_layer();
  return {};
}

Status TraceReader::read_group(TraceGroup& group) {
  HOTSET_TRY(group.device, read_value<uint32_t>("device of a group"));
  HOTSET_TRY(group.n_expert, read_value<uint32_t>("number of experts of a group"));
  const uint64_t layers_offset = offset_bytes();
  HOTSET_TRY(const uint32_t n_layers, read_value<uint32_t>("number of layers of a group"));
  if (n_layers < 1 || n_layers > header_.n_layer) {
    return corrupt(layers_offset, fmt::format("number of layers of a group is {}, expected 1 to {}",
                                              n_layers, header_.n_layer));
  }
  for (uint32_t i = 0; i < n_layers; ++i) {
    HOTSET_TRY(const uint32_t layer, read_value<uint32_t>("layers of a group"));
    group.layers.push_back(layer);
  }
  HOTSET_TRY(group.split, read_value<double>("split of a group"));
  HOTSET_TRY(group.split_sum, read_value<double>("split sum of a group"));
  // A number above 2^63 becomes negative and fails validate().
  HOTSET_TRY(group.group_host_bytes.count, read_value<int64_t>("group host bytes"));
  HOTSET_TRY(group.device_host_bytes.count, read_value<int64_t>("device host bytes"));
  HOTSET_TRY(group.alignment_bytes, read_value<int64_t>("alignment of a group"));
  const uint64_t tensors_offset = offset_bytes();
  HOTSET_TRY(const uint32_t n_tensors, read_value<uint32_t>("number of tensors of a group"));
  if (n_tensors < 1 || n_tensors > kMaxTraceTensors) {
    return corrupt(tensors_offset,
                   fmt::format("number of tensors of a group is {}, expected 1 to {}", n_tensors,
                               kMaxTraceTensors));
  }
  for (uint32_t i = 0; i < n_tensors; ++i) {
    HOTSET_TRY(const int64_t n_bytes, read_value<int64_t>("bytes of one expert of a tensor"));
    group.tensor_expert_bytes.push_back({n_bytes});
  }
  return {};
}

Result<const TraceLookup*> TraceReader::next() {
  if (!status_) return std::unexpected(status_.error());
  Result<bool> found = read_lookup();
  if (!found) {
    status_ = std::unexpected(found.error());
    return std::unexpected(std::move(found).error());
  }
  return *found ? &lookup_ : nullptr;
}

Result<bool> TraceReader::read_lookup() {
  HOTSET_RETURN_IF_ERROR(fill(kLookupHeadBytes));
  if (available() == 0) return false;
  const uint64_t start = offset_bytes();
  if (available() < kLookupHeadBytes) {
    return corrupt(start, fmt::format("the file ends inside a lookup: {} bytes are left, its head "
                                      "has {}",
                                      available(), kLookupHeadBytes));
  }
  const std::byte* head = buffer_.data() + begin_;
  lookup_.layer = load_little_endian<int32_t>(head);
  lookup_.experts_per_token = load_little_endian<int32_t>(head + 4);
  const auto n_ids = load_little_endian<int32_t>(head + 8);
  begin_ += kLookupHeadBytes;
  if (n_ids < 1 || n_ids > kMaxTraceLookupIds) {
    return corrupt(start + 8, fmt::format("lookup: number of ids is {}, expected 1 to {}", n_ids,
                                          kMaxTraceLookupIds));
  }
  HOTSET_RETURN_IF_ERROR(read_ids(static_cast<size_t>(n_ids)));
  lookup_.ids = std::span(ids_).first(n_ids);
  if (Status status = validate(lookup_, header_, group_by_layer_); !status) {
    return corrupt(start, fmt::format("lookup: {}", status.error().message));
  }
  return true;
}

Status TraceReader::read_ids(size_t n_ids) {
  for (size_t done = 0; done < n_ids;) {
    const size_t n_chunk = std::min(n_ids - done, kIdsPerChunk);
    HOTSET_RETURN_IF_ERROR(fill(n_chunk * sizeof(int32_t)));
    if (available() < n_chunk * sizeof(int32_t)) {
      return corrupt(offset_bytes() + available(),
                     fmt::format("the file ends inside a lookup: {} of its {} ids are there",
                                 done + available() / sizeof(int32_t), n_ids));
    }
    if (ids_.size() < done + n_chunk) ids_.resize(done + n_chunk);
    load_little_endian(buffer_.data() + begin_, std::span(ids_).subspan(done, n_chunk));
    begin_ += n_chunk * sizeof(int32_t);
    done += n_chunk;
  }
  return {};
}

}  // namespace hotset::trace
