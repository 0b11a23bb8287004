#include "hotset/model/gguf_scan.h"

#include <ggml.h>
#include <gguf.h>

#include <bit>
#include <cstring>
#include <string>
#include <unordered_set>
#include <utility>

#include "hotset/base/printable.h"

namespace hotset::model {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr uint32_t kMinVersion = 2;
constexpr uint32_t kMaxVersion = 3;
constexpr uint32_t kDefaultAlignment = 32;
constexpr uint32_t kMaxAlignment = 1 << 20;
constexpr uint64_t kMaxKeyBytes = 65535;
// The smallest key-value pair: a key of one byte (8 + 1), its type (4), a one-byte value.
constexpr uint64_t kMinKeyValueBytes = 14;
// The smallest tensor: a name of one byte (8 + 1), n_dims (4), one dimension (8), type (4), offset
// (8).
constexpr uint64_t kMinTensorBytes = 33;

// Bytes of one value of a fixed-width GGUF type; 0 for strings, arrays and unknown types.
uint64_t value_bytes(uint32_t type) {
  switch (type) {
    case GGUF_TYPE_UINT8:
    case GGUF_TYPE_INT8:
    case GGUF_TYPE_BOOL:
      return 1;
    case GGUF_TYPE_UINT16:
    case GGUF_TYPE_INT16:
      return 2;
    case GGUF_TYPE_UINT32:
    case GGUF_TYPE_INT32:
    case GGUF_TYPE_FLOAT32:
      return 4;
    case GGUF_TYPE_UINT64:
    case GGUF_TYPE_INT64:
    case GGUF_TYPE_FLOAT64:
      return 8;
    default:
      return 0;
  }
}

class Scanner {
 public:
  Scanner(std::span<const uint8_t> bytes, std::string_view file_name)
      : bytes_(bytes), file_name_(file_name) {}

  Result<TextPositions> scan() {
    HOTSET_RETURN_IF_ERROR(scan_magic());
    HOTSET_TRY(const auto n_tensors, read<uint64_t>("tensor count"));
    HOTSET_TRY(const auto n_keys, read<uint64_t>("key count"));
    HOTSET_RETURN_IF_ERROR(check_count("keys", n_keys, kMaxGgufKeys, kMinKeyValueBytes));
    HOTSET_RETURN_IF_ERROR(check_count("tensors", n_tensors, kMaxGgufTensors, kMinTensorBytes));
    for (uint64_t i = 0; i < n_keys; ++i) HOTSET_RETURN_IF_ERROR(scan_key_value());
    for (uint64_t i = 0; i < n_tensors; ++i) HOTSET_RETURN_IF_ERROR(scan_tensor());
    HOTSET_RETURN_IF_ERROR(check_data(n_tensors));
    return std::move(text_positions_);
  }

 private:
  template <typename... Args>
  std::unexpected<Error> corrupt(uint64_t offset, fmt::format_string<Args...> format,
                                 Args&&... args) const {
    return make_error(ErrorCode::kCorrupt, "{}: byte {}: {}", file_name_, offset,
                      fmt::format(format, std::forward<Args>(args)...));
  }

  uint64_t left() const { return bytes_.size() - position_; }

  template <typename T>
  Result<T> read(std::string_view what) {
    if (left() < sizeof(T)) {
      return corrupt(position_, "the file ends in the {}: found {} bytes, expected {}", what,
                     left(), sizeof(T));
    }
    T value;
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }

  Result<std::string_view> read_string(std::string_view what) {
    const uint64_t start = position_;
    HOTSET_TRY(const auto n, read<uint64_t>(what));
    if (n > left()) {
      return corrupt(start, "{} of {} bytes, but only {} are left in the file", what, n, left());
    }
    const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + position_, n);
    position_ += n;
    return text;
  }

  Status scan_magic() {
    if (bytes_.size() < kMagic.size() || std::memcmp(bytes_.data(), kMagic.data(), 4) != 0) {
      std::string found;
      for (size_t i = 0; i < std::min(kMagic.size(), bytes_.size()); ++i) {
        found += fmt::format("{}{:02x}", i > 0 ? " " : "", bytes_[i]);
      }
      return make_error(ErrorCode::kCorrupt,
                        "{}: this is not a GGUF file: found {} at its start, expected 'GGUF'",
                        file_name_, found.empty() ? "nothing" : found);
    }
    position_ = kMagic.size();
    HOTSET_TRY(const auto version, read<uint32_t>("version"));
    if (version >= kMinVersion && version <= kMaxVersion) return {};
    const uint32_t swapped = std::byteswap(version);
    if (swapped >= kMinVersion && swapped <= kMaxVersion) {
      return make_error(ErrorCode::kUnsupported,
                        "{}: the file is big-endian, expected little-endian", file_name_);
    }
    return make_error(ErrorCode::kUnsupported, "{}: found GGUF version {}, expected {} to {}",
                      file_name_, version, kMinVersion, kMaxVersion);
  }

  // A count is believed only if its smallest possible entries would fit into what is left.
  Status check_count(std::string_view what, uint64_t n, uint64_t limit, uint64_t min_bytes) const {
    if (n > limit) return corrupt(position_, "found {} {}, expected at most {}", n, what, limit);
    if (n * min_bytes > left()) {
      return corrupt(position_, "found {} {}, but only {} bytes are left in the file", n, what,
                     left());
    }
    return {};
  }

  Status scan_key_value() {
    const uint64_t start = position_;
    HOTSET_TRY(const auto key, read_string("key"));
    if (key.empty() || key.size() > kMaxKeyBytes || key.find('\0') != std::string_view::npos) {
      return corrupt(start, "a key of {} bytes, expected 1 to {} without NUL", key.size(),
                     kMaxKeyBytes);
    }
    if (!names_.emplace(key).second)
      return corrupt(start, "the key '{}' occurs twice", printable(key));
    HOTSET_TRY(const auto type, read<uint32_t>("type of a value"));
    if (type == GGUF_TYPE_ARRAY) return scan_array(key);
    if (key == GGUF_KEY_GENERAL_ALIGNMENT) {
      if (type != GGUF_TYPE_UINT32) {
        return corrupt(start, "key '{}': found type {}, expected u32", key, type);
      }
      HOTSET_TRY(alignment_, read<uint32_t>("alignment"));
      if (!std::has_single_bit(alignment_) || alignment_ > kMaxAlignment) {
        return corrupt(start, "key '{}': found {}, expected a power of two up to {}", key,
                       alignment_, kMaxAlignment);
      }
      return {};
    }
    return skip_values(key, type, 1);
  }

  Status scan_array(std::string_view key) {
    const uint64_t start = position_;
    HOTSET_TRY(const auto type, read<uint32_t>("element type of an array"));
    HOTSET_TRY(const auto n, read<uint64_t>("length of an array"));
    if (key == GGUF_KEY_GENERAL_ALIGNMENT) {
      return corrupt(start, "key '{}': found an array, expected u32", key);
    }
    if (type == GGUF_TYPE_ARRAY) {
      return corrupt(start, "key '{}': found an array of arrays, expected one of single values",
                     printable(key));
    }
    return skip_values(key, type, n);
  }

  Status skip_values(std::string_view key, uint32_t type, uint64_t n) {
    const uint64_t start = position_;
    if (type == GGUF_TYPE_STRING) {
      text_positions_.emplace(key, start);
      for (uint64_t i = 0; i < n; ++i) HOTSET_RETURN_IF_ERROR(read_string("string value"));
      return {};
    }
    const uint64_t each = value_bytes(type);
    if (each == 0) {
      return corrupt(start, "key '{}': found value type {}, expected 0 to {}", printable(key), type,
                     GGUF_TYPE_COUNT - 1);
    }
    if (n > left() / each) {
      return corrupt(start, "key '{}': {} values of {} bytes, but only {} bytes are left",
                     printable(key), n, each, left());
    }
    position_ += n * each;
    return {};
  }

  Status scan_tensor() {
    const uint64_t start = position_;
    HOTSET_TRY(const auto name, read_string("name of a tensor"));
    if (name.empty() || name.size() >= GGML_MAX_NAME || name.find('\0') != std::string_view::npos) {
      return corrupt(start, "a tensor name of {} bytes, expected 1 to {} without NUL", name.size(),
                     GGML_MAX_NAME - 1);
    }
    if (!tensor_names_.emplace(name).second) {
      return corrupt(start, "the tensor '{}' occurs twice", printable(name));
    }
    HOTSET_TRY(const auto n_dims, read<uint32_t>("number of dimensions"));
    if (n_dims == 0 || n_dims > GGML_MAX_DIMS) {
      return corrupt(start, "tensor '{}': found {} dimensions, expected 1 to {}", printable(name),
                     n_dims, GGML_MAX_DIMS);
    }
    int64_t ne[GGML_MAX_DIMS] = {1, 1, 1, 1};
    int64_t n_elements = 1;
    for (uint32_t d = 0; d < n_dims; ++d) {
      HOTSET_TRY(ne[d], read<int64_t>("dimension of a tensor"));
      if (ne[d] <= 0) {
        return corrupt(start, "tensor '{}': dimension {} is {}, expected a positive size",
                       printable(name), d, ne[d]);
      }
      if (__builtin_mul_overflow(n_elements, ne[d], &n_elements)) {
        return corrupt(start, "tensor '{}': found more values than 64 bits can count",
                       printable(name));
      }
    }
    HOTSET_TRY(const auto type, read<uint32_t>("type of a tensor"));
    HOTSET_TRY(const auto offset, read<uint64_t>("offset of a tensor"));
    return check_tensor_data(start, name, ne[0], n_elements, type, offset);
  }

  Status check_tensor_data(uint64_t start, std::string_view name, int64_t row, int64_t n_elements,
                           uint32_t type, uint64_t offset) {
    // Types that were removed from ggml have no size.
    if (type >= GGML_TYPE_COUNT || ggml_type_size(static_cast<ggml_type>(type)) == 0) {
      return make_error(ErrorCode::kUnsupported,
                        "{}: tensor '{}': found type {}, expected one that this ggml knows",
                        file_name_, printable(name), type);
    }
    const int64_t block = ggml_blck_size(static_cast<ggml_type>(type));
    if (row % block != 0) {
      return corrupt(start, "tensor '{}': rows of {} values, expected a multiple of {} for {}",
                     printable(name), row, block, ggml_type_name(static_cast<ggml_type>(type)));
    }
    uint64_t n_bytes = 0;
    if (__builtin_mul_overflow(static_cast<uint64_t>(n_elements / block),
                               ggml_type_size(static_cast<ggml_type>(type)), &n_bytes) ||
        n_bytes > bytes_.size()) {
      return corrupt(start, "tensor '{}' of {} values is larger than the file of {} bytes",
                     printable(name), n_elements, bytes_.size());
    }
    if (offset != next_offset_) {
      return corrupt(start, "tensor '{}': found its data at offset {}, expected {}",
                     printable(name), offset, next_offset_);
    }
    data_end_ = offset + n_bytes;
    next_offset_ = (data_end_ + alignment_ - 1) / alignment_ * alignment_;
    // Also keeps the sums far from overflow.
    if (data_end_ > bytes_.size()) {
      return corrupt(start, "tensor '{}' ends past the end of the file of {} bytes",
                     printable(name), bytes_.size());
    }
    return {};
  }

  // The last tensor's padding may be missing.
  Status check_data(uint64_t n_tensors) const {
    if (n_tensors == 0) return {};
    const uint64_t data_start = (position_ + alignment_ - 1) / alignment_ * alignment_;
    if (data_start + data_end_ > bytes_.size()) {
      return make_error(ErrorCode::kCorrupt,
                        "{}: the file is truncated: found {} bytes, expected {}", file_name_,
                        bytes_.size(), data_start + data_end_);
    }
    return {};
  }

  std::span<const uint8_t> bytes_;
  std::string_view file_name_;
  uint64_t position_ = 0;
  uint32_t alignment_ = kDefaultAlignment;
  uint64_t next_offset_ = 0;  // where the next tensor's data must start, from the data section
  uint64_t data_end_ = 0;     // where the last tensor's data ends
  TextPositions text_positions_;
  std::unordered_set<std::string_view> names_;
  std::unordered_set<std::string_view> tensor_names_;
};

}  // namespace

Result<TextPositions> scan_gguf(std::span<const uint8_t> bytes, std::string_view file_name) {
  return Scanner(bytes, file_name).scan();
}

}  // namespace hotset::model
