#include "hotset/model/gguf_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "hotset/base/allocation.h"
#include "hotset/base/printable.h"

namespace hotset::model {
namespace {

constexpr std::string_view kSplitNumberKey = "split.no";
constexpr std::string_view kSplitCountKey = "split.count";
constexpr std::string_view kSplitTensorsKey = "split.tensors.count";
constexpr int64_t kMaxParts = 99999;  // what the five digits of a part's name can say

std::string part_suffix(int64_t number, int64_t count) {
  return fmt::format("-{:05}-of-{:05}.gguf", number, count);
}

// The value of a scalar of any integer type.
std::optional<int64_t> scalar_int(const gguf_context* context, int64_t id) {
  switch (gguf_get_kv_type(context, id)) {
    case GGUF_TYPE_UINT8:
      return gguf_get_val_u8(context, id);
    case GGUF_TYPE_INT8:
      return gguf_get_val_i8(context, id);
    case GGUF_TYPE_UINT16:
      return gguf_get_val_u16(context, id);
    case GGUF_TYPE_INT16:
      return gguf_get_val_i16(context, id);
    case GGUF_TYPE_UINT32:
      return gguf_get_val_u32(context, id);
    case GGUF_TYPE_INT32:
      return gguf_get_val_i32(context, id);
    case GGUF_TYPE_INT64:
      return gguf_get_val_i64(context, id);
    case GGUF_TYPE_UINT64:
      // Those above INT64_MAX are caught by the caller.
      return static_cast<int64_t>(gguf_get_val_u64(context, id));
    default:
      return std::nullopt;
  }
}

template <typename From, typename To>
void append(const void* data, size_t n, std::vector<To>& out) {
  const auto* values = static_cast<const From*>(data);
  for (size_t i = 0; i < n; ++i) out.push_back(static_cast<To>(values[i]));
}

}  // namespace

std::string describe(const TensorInfo& tensor) {
  int n_dims = 4;
  while (n_dims > 1 && tensor.ne[static_cast<size_t>(n_dims) - 1] == 1) --n_dims;
  std::string shape;
  for (int d = n_dims - 1; d >= 0; --d) {
    shape += fmt::format("{}{}", tensor.ne[d], d > 0 ? ", " : "");
  }
  return fmt::format("[{}] {}", shape, ggml_type_name(tensor.type));
}

Result<GgufFile> GgufFile::open(const std::filesystem::path& path) {
  return catching_refusal("the header of a model", [&]() -> Result<GgufFile> {
    HOTSET_TRY(GgufFile file, open_alone(path));
    HOTSET_RETURN_IF_ERROR(file.open_other_parts(path));
    return file;
  });
}

Result<GgufFile> GgufFile::open_alone(const std::filesystem::path& path) {
  HOTSET_TRY(MappedFile mapped, MappedFile::open(path));
  GgufFile file;
  file.name_ = path.string();
  const std::span<const uint8_t> bytes = mapped.bytes();
  HOTSET_RETURN_IF_ERROR(file.add_part({std::move(mapped), bytes, path.string()}));
  return file;
}

Result<GgufFile> GgufFile::parse(std::span<const uint8_t> bytes, std::string name) {
  return catching_refusal("the header of a model", [&]() -> Result<GgufFile> {
    GgufFile file;
    file.name_ = name;
    HOTSET_RETURN_IF_ERROR(file.add_part({std::nullopt, bytes, std::move(name)}));
    return file;
  });
}

Status GgufFile::add_part(Part part) {
  Result<TextPositions> scanned = scan_gguf(part.bytes, part.name);
  // What a scan says of a file that is being cut is said of zeros.
  if (part.file) HOTSET_RETURN_IF_ERROR(part.file->check());
  HOTSET_TRY(TextPositions text_positions, std::move(scanned));
  HOTSET_RETURN_IF_ERROR(expect_memory(part.name));
  gguf_context_ptr context(gguf_init_from_buffer(part.bytes.data(), part.bytes.size(),
                                                 {.no_alloc = true, .ctx = nullptr}));
  if (part.file) HOTSET_RETURN_IF_ERROR(part.file->check());
  if (!context) {
    return make_error(ErrorCode::kCorrupt,
                      "{}: ggml's reader refuses this file, or found no memory for it", part.name);
  }
  parts_.push_back(std::move(part));
  HOTSET_RETURN_IF_ERROR(add_tensors(context.get(), parts_.size() - 1));
  if (parts_.size() > 1) return {};
  metadata_ = std::move(context);
  text_positions_ = std::move(text_positions);
  for (int64_t id = 0; id < gguf_get_n_kv(metadata_.get()); ++id) {
    key_ids_.emplace(gguf_get_key(metadata_.get(), id), id);
  }
  return {};
}

Status GgufFile::add_tensors(const gguf_context* context, size_t part) {
  const uint64_t data_start = gguf_get_data_offset(context);
  for (int64_t id = 0; id < gguf_get_n_tensors(context); ++id) {
    TensorInfo tensor{.name = gguf_get_tensor_name(context, id),
                      .type = gguf_get_tensor_type(context, id),
                      .part = part,
                      .offset = data_start + gguf_get_tensor_offset(context, id),
                      .n_bytes = {static_cast<int64_t>(gguf_get_tensor_size(context, id))}};
    std::copy_n(gguf_get_tensor_ne(context, id), 4, tensor.ne.begin());
    if (tensor.offset + static_cast<uint64_t>(tensor.n_bytes.count) > parts_[part].bytes.size()) {
      return make_error(ErrorCode::kCorrupt, "{}: tensor '{}' ends at byte {}, the file has {}",
                        parts_[part].name, printable(tensor.name),
                        tensor.offset + static_cast<uint64_t>(tensor.n_bytes.count),
                        parts_[part].bytes.size());
    }
    if (!tensor_index_.emplace(tensor.name, tensors_.size()).second) {
      return make_error(ErrorCode::kCorrupt, "{}: tensor '{}' is in an earlier part as well",
                        parts_[part].name, printable(tensor.name));
    }
    tensors_.push_back(std::move(tensor));
  }
  return {};
}

Result<GgufFile::Part> GgufFile::open_part(const std::filesystem::path& path, int64_t index,
                                           int64_t count) {
  HOTSET_TRY(GgufFile file, open_alone(path));
  HOTSET_TRY(const int64_t found_index, file.require_int(kSplitNumberKey, 0, kMaxParts));
  HOTSET_TRY(const int64_t found_count, file.require_int(kSplitCountKey, 0, kMaxParts));
  if (found_index != index || found_count != count) {
    return make_error(ErrorCode::kCorrupt, "{}: this is part {} of {}", path.string(),
                      found_index + 1, found_count);
  }
  return std::move(file.parts_.front());
}

Status GgufFile::open_other_parts(const std::filesystem::path& path) {
  HOTSET_TRY(const auto count, find_int(kSplitCountKey, 0, kMaxParts));
  if (count.value_or(0) <= 1) return {};
  HOTSET_TRY(const int64_t number, require_int(kSplitNumberKey, 0, kMaxParts));
  HOTSET_TRY(const int64_t n_tensors, require_int(kSplitTensorsKey, 0, INT32_MAX));
  if (number >= *count) {
    return make_error(ErrorCode::kCorrupt, "{}: found part {} of {} ('{}', '{}')", path.string(),
                      number + 1, *count, kSplitNumberKey, kSplitCountKey);
  }
  const std::string own_suffix = part_suffix(number + 1, *count);
  const std::string file_name = path.filename().string();
  if (!file_name.ends_with(own_suffix)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: this is part {} of {}, expected a file name that ends in '{}'",
                      path.string(), number + 1, *count, own_suffix);
  }
  const std::string prefix = file_name.substr(0, file_name.size() - own_suffix.size());
  if (number != 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: this is part {} of {}, expected the first one, '{}'", path.string(),
                      number + 1, *count, prefix + part_suffix(1, *count));
  }
  for (int64_t i = 1; i < *count; ++i) {
    const std::filesystem::path other = path.parent_path() / (prefix + part_suffix(i + 1, *count));
    auto part = open_part(other, i, *count);
    if (!part) {
      return add_context(std::move(part).error(), fmt::format("part {} of {}", i + 1, *count));
    }
    HOTSET_RETURN_IF_ERROR(add_part(*std::move(part)));
  }
  if (std::cmp_not_equal(tensors_.size(), n_tensors)) {
    return make_error(ErrorCode::kCorrupt,
                      "{}: found {} tensors in {} parts, expected {} ('split.tensors.count')",
                      name_, tensors_.size(), *count, n_tensors);
  }
  return {};
}

std::span<const uint8_t> GgufFile::part_bytes(size_t part) const { return parts_.at(part).bytes; }

const MappedFile* GgufFile::part_mapping(size_t part) const {
  const auto& file = parts_.at(part).file;
  return file ? &*file : nullptr;
}

Bytes GgufFile::total_bytes() const {
  Bytes total;
  for (const Part& part : parts_) total += Bytes{static_cast<int64_t>(part.bytes.size())};
  return total;
}

const TensorInfo* GgufFile::find_tensor(std::string_view name) const {
  const auto found = tensor_index_.find(std::string(name));
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

std::span<const uint8_t> GgufFile::tensor_bytes(const TensorInfo& tensor) const {
  return part_bytes(tensor.part).subspan(tensor.offset, static_cast<size_t>(tensor.n_bytes.count));
}

Status GgufFile::check() const {
  Status status;
  for (const Part& part : parts_) {
    if (!part.file) continue;
    const Status checked = part.file->check();
    if (status) status = checked;
  }
  return status;
}

int64_t GgufFile::key_id(std::string_view key) const {
  const auto found = key_ids_.find(std::string(key));
  return found == key_ids_.end() ? -1 : found->second;
}

bool GgufFile::has(std::string_view key) const { return key_id(key) >= 0; }

std::unexpected<Error> GgufFile::wrong_type(std::string_view key, int64_t id,
                                            std::string_view expected) const {
  const gguf_type type = gguf_get_kv_type(metadata_.get(), id);
  std::string found = gguf_type_name(type);
  if (type == GGUF_TYPE_ARRAY) {
    found = fmt::format("an array of {}", gguf_type_name(gguf_get_arr_type(metadata_.get(), id)));
  }
  return make_error(ErrorCode::kCorrupt, "{}: key '{}': found {}, expected {}", name_, key, found,
                    expected);
}

Result<std::optional<int64_t>> GgufFile::find_int(std::string_view key, int64_t min,
                                                  int64_t max) const {
  const int64_t id = key_id(key);
  if (id < 0) return std::nullopt;
  const std::optional<int64_t> value = scalar_int(metadata_.get(), id);
  if (!value) return wrong_type(key, id, "an integer");
  if (*value < 0 && gguf_get_kv_type(metadata_.get(), id) == GGUF_TYPE_UINT64) {
    return make_error(ErrorCode::kCorrupt, "{}: key '{}': found {}, expected {} to {}", name_, key,
                      static_cast<uint64_t>(*value), min, max);
  }
  if (*value < min || *value > max) {
    return make_error(ErrorCode::kCorrupt, "{}: key '{}': found {}, expected {} to {}", name_, key,
                      *value, min, max);
  }
  return value;
}

Result<std::optional<double>> GgufFile::find_float(std::string_view key) const {
  const int64_t id = key_id(key);
  if (id < 0) return std::nullopt;
  double value = 0;
  switch (gguf_get_kv_type(metadata_.get(), id)) {
    case GGUF_TYPE_FLOAT32:
      value = gguf_get_val_f32(metadata_.get(), id);
      break;
    case GGUF_TYPE_FLOAT64:
      value = gguf_get_val_f64(metadata_.get(), id);
      break;
    default: {
      if (!scalar_int(metadata_.get(), id)) return wrong_type(key, id, "a number");
      HOTSET_TRY(const std::optional<int64_t> integer, find_int(key));
      value = static_cast<double>(*integer);
    }
  }
  // Models compute in float; NaN fails as well.
  if (!(std::abs(value) <= std::numeric_limits<float>::max())) {
    return make_error(ErrorCode::kCorrupt,
                      "{}: key '{}': found {}, expected a finite 32-bit number", name_, key, value);
  }
  return value;
}

Result<std::optional<bool>> GgufFile::find_bool(std::string_view key) const {
  const int64_t id = key_id(key);
  if (id < 0) return std::nullopt;
  if (gguf_get_kv_type(metadata_.get(), id) != GGUF_TYPE_BOOL) {
    return wrong_type(key, id, "a boolean");
  }
  return gguf_get_val_bool(metadata_.get(), id);
}

Result<std::optional<std::string>> GgufFile::find_string(std::string_view key) const {
  const int64_t id = key_id(key);
  if (id < 0) return std::nullopt;
  if (gguf_get_kv_type(metadata_.get(), id) != GGUF_TYPE_STRING) {
    return wrong_type(key, id, "a string");
  }
  uint64_t position = text_positions_.at(std::string(key));
  return read_text(key, position);
}

Result<std::string> GgufFile::read_text(std::string_view key, uint64_t& position) const {
  const std::span<const uint8_t> bytes = parts_.front().bytes;
  uint64_t n = 0;
  // Lengths were checked when the file was opened, but a mapped file may have changed since.
  if (bytes.size() - sizeof(n) >= position) {
    std::memcpy(&n, bytes.data() + position, sizeof(n));
    position += sizeof(n);
    if (n <= bytes.size() - position) {
      const auto* text = reinterpret_cast<const char*>(bytes.data()) + position;
      position += n;
      return std::string(text, n);
    }
  }
  return make_error(ErrorCode::kCorrupt, "{}: key '{}': the file has changed since it was opened",
                    name_, printable(key));
}

Result<std::optional<std::vector<std::string>>> GgufFile::find_strings(std::string_view key) const {
  const int64_t id = key_id(key);
  if (id < 0) return std::nullopt;
  const gguf_context* context = metadata_.get();
  if (gguf_get_kv_type(context, id) != GGUF_TYPE_ARRAY ||
      gguf_get_arr_type(context, id) != GGUF_TYPE_STRING) {
    return wrong_type(key, id, "an array of strings");
  }
  std::vector<std::string> values(gguf_get_arr_n(context, id));
  uint64_t position = text_positions_.at(std::string(key));
  for (std::string& value : values) {
    HOTSET_TRY(value, read_text(key, position));
  }
  return values;
}

Result<std::optional<std::vector<int64_t>>> GgufFile::find_ints(std::string_view key) const {
  const int64_t id = key_id(key);
  if (id < 0) return std::nullopt;
  const gguf_context* context = metadata_.get();
  constexpr std::string_view kExpected = "an array of integers";
  if (gguf_get_kv_type(context, id) != GGUF_TYPE_ARRAY) return wrong_type(key, id, kExpected);
  const gguf_type type = gguf_get_arr_type(context, id);
  if (type == GGUF_TYPE_STRING) return wrong_type(key, id, kExpected);
  const void* data = gguf_get_arr_data(context, id);
  const size_t n = gguf_get_arr_n(context, id);
  std::vector<int64_t> values;
  values.reserve(n);
  switch (type) {
    case GGUF_TYPE_UINT8:
    case GGUF_TYPE_BOOL:
      append<uint8_t>(data, n, values);
      break;
    case GGUF_TYPE_INT8:
      append<int8_t>(data, n, values);
      break;
    case GGUF_TYPE_UINT16:
      append<uint16_t>(data, n, values);
      break;
    case GGUF_TYPE_INT16:
      append<int16_t>(data, n, values);
      break;
    case GGUF_TYPE_UINT32:
      append<uint32_t>(data, n, values);
      break;
    case GGUF_TYPE_INT32:
      append<int32_t>(data, n, values);
      break;
    case GGUF_TYPE_UINT64:
      append<uint64_t>(data, n, values);
      if (const auto over = std::ranges::find_if(values, [](int64_t v) { return v < 0; });
          over != values.end()) {
        return make_error(ErrorCode::kCorrupt, "{}: key '{}': found {} at {}, expected at most {}",
                          name_, key, static_cast<uint64_t>(*over), over - values.begin(),
                          std::numeric_limits<int64_t>::max());
      }
      break;
    case GGUF_TYPE_INT64:
      append<int64_t>(data, n, values);
      break;
    default:
      return wrong_type(key, id, kExpected);
  }
  return values;
}

Result<std::optional<std::vector<float>>> GgufFile::find_floats(std::string_view key) const {
  const int64_t id = key_id(key);
  if (id < 0) return std::nullopt;
  const gguf_context* context = metadata_.get();
  const bool is_array = gguf_get_kv_type(context, id) == GGUF_TYPE_ARRAY;
  const gguf_type type = is_array ? gguf_get_arr_type(context, id) : GGUF_TYPE_COUNT;
  std::vector<float> values;
  if (type == GGUF_TYPE_FLOAT32) {
    append<float>(gguf_get_arr_data(context, id), gguf_get_arr_n(context, id), values);
  } else if (type == GGUF_TYPE_FLOAT64) {
    append<double>(gguf_get_arr_data(context, id), gguf_get_arr_n(context, id), values);
  } else {
    return wrong_type(key, id, "an array of floating-point numbers");
  }
  return values;
}

namespace {

template <typename T>
Result<T> required(Result<std::optional<T>> found, std::string_view file, std::string_view key,
                   std::string_view expected) {
  if (!found) return std::unexpected(std::move(found).error());
  if (!*found) {
    return make_error(ErrorCode::kCorrupt, "{}: key '{}': found nothing, expected {}", file, key,
                      expected);
  }
  return **std::move(found);
}

}  // namespace

Result<int64_t> GgufFile::require_int(std::string_view key, int64_t min, int64_t max) const {
  return required(find_int(key, min, max), name_, key, fmt::format("{} to {}", min, max));
}

Result<double> GgufFile::require_float(std::string_view key) const {
  return required(find_float(key), name_, key, "a number");
}

Result<std::string> GgufFile::require_string(std::string_view key) const {
  return required(find_string(key), name_, key, "a string");
}

std::optional<int64_t> GgufFile::array_length(std::string_view key) const {
  const int64_t id = key_id(key);
  if (id < 0 || gguf_get_kv_type(metadata_.get(), id) != GGUF_TYPE_ARRAY) return std::nullopt;
  return static_cast<int64_t>(gguf_get_arr_n(metadata_.get(), id));
}

}  // namespace hotset::model
