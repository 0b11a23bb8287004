#include "hotset/trace/writer.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "hotset/trace/little_endian.h"

namespace hotset::trace {
namespace {

// As the reader's buffer.
constexpr size_t kFlushBytes = 128 << 10;

template <typename T>
void append_value(std::vector<std::byte>& bytes, T value) {
  bytes.resize(bytes.size() + sizeof(T));
  store_little_endian(value, bytes.data() + bytes.size() - sizeof(T));
}

std::unexpected<Error> io_error(const std::string& path, const char* what, int error) {
  return make_error(ErrorCode::kIo, "{}: cannot be {}: {}", path, what, std::strerror(error));
}

}  // namespace

void encode_header(const TraceHeader& header, std::vector<std::byte>& bytes) {
  for (const char c : {'M', 'C', 'T', '1'}) bytes.push_back(static_cast<std::byte>(c));
  append_value(bytes, header.n_layer);
  append_value(bytes, header.experts_per_token);
  append_value(bytes, static_cast<uint32_t>(header.groups.size()));
  for (const TraceGroup& group : header.groups) {
    append_value(bytes, group.device);
    append_value(bytes, group.n_expert);
    append_value(bytes, static_cast<uint32_t>(group.layers.size()));
    for (const uint32_t layer : group.layers) append_value(bytes, layer);
    append_value(bytes, group.split);
    append_value(bytes, group.split_sum);
    append_value(bytes, group.group_host_bytes.count);
    append_value(bytes, group.device_host_bytes.count);
    append_value(bytes, group.alignment_bytes);
    append_value(bytes, static_cast<uint32_t>(group.tensor_expert_bytes.size()));
    for (const Bytes tensor : group.tensor_expert_bytes) append_value(bytes, tensor.count);
  }
}

void encode_lookup(const TraceLookup& lookup, std::vector<std::byte>& bytes) {
  append_value(bytes, lookup.layer);
  append_value(bytes, lookup.experts_per_token);
  append_value(bytes, static_cast<int32_t>(lookup.ids.size()));
  for (const int32_t id : lookup.ids) append_value(bytes, id);
}

TraceWriter::PartialFile::~PartialFile() {
  if (file == nullptr) return;
  std::fclose(file);
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
}

TraceWriter::TraceWriter(std::string path, const TraceHeader& header)
    : path_(std::move(path)),
      header_(header),
      group_by_layer_(header.group_by_layer()),
      partial_(std::make_unique<PartialFile>()) {
  partial_->path = path_ + ".partial";
  encode_header(header_, buffer_);
  offset_bytes_ = buffer_.size();
}

Result<TraceWriter> TraceWriter::open(const std::string& path, const TraceHeader& header) {
  HOTSET_RETURN_IF_ERROR(validate(header));
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored)) {
    return make_error(ErrorCode::kIo, "{}: is not a regular file, so a trace cannot replace it",
                      path);
  }
  TraceWriter writer(path, header);
  writer.partial_->file = std::fopen(writer.partial_->path.c_str(), "wb");
  if (writer.partial_->file == nullptr) return io_error(writer.partial_->path, "opened", errno);
  std::setvbuf(writer.partial_->file, nullptr, _IONBF, 0);
  return writer;
}

Status TraceWriter::append(const TraceLookup& lookup) {
  HOTSET_RETURN_IF_ERROR(validate(lookup, header_, group_by_layer_));
  encode_lookup(lookup, buffer_);
  offset_bytes_ += (3 + lookup.ids.size()) * sizeof(int32_t);
  return buffer_.size() < kFlushBytes ? Status() : flush();
}

Status TraceWriter::flush() {
  const size_t n_written = std::fwrite(buffer_.data(), 1, buffer_.size(), partial_->file);
  if (n_written != buffer_.size()) return io_error(partial_->path, "written", errno);
  buffer_.clear();
  return {};
}

Status TraceWriter::close() {
  HOTSET_CHECK(partial_ != nullptr && partial_->file != nullptr);
  HOTSET_RETURN_IF_ERROR(flush());
  const int close_result = std::fclose(std::exchange(partial_->file, nullptr));
  const int close_error = errno;
  std::error_code error;
  if (close_result != 0) {
    std::filesystem::remove(partial_->path, error);
    return io_error(partial_->path, "written", close_error);
  }
  std::filesystem::rename(partial_->path, path_, error);
  if (error) {
    std::error_code ignored;
    std::filesystem::remove(partial_->path, ignored);
    return make_error(ErrorCode::kIo, "{}: cannot be named {}: {}", partial_->path, path_,
                      error.message());
  }
  return {};
}

}  // namespace hotset::trace
