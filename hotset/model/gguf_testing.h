// GGUF files for tests: made byte by byte, so that every wrong one can be made too, and copies of
// real ones with something changed.
// Thread-compatible.
#ifndef HOTSET_MODEL_GGUF_TESTING_H_
#define HOTSET_MODEL_GGUF_TESTING_H_

#include <ggml.h>
#include <gguf.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/model/gguf_file.h"

namespace hotset::model {

static_assert(std::endian::native == std::endian::little);

// Little-endian bytes, appended one after the other.
class ByteWriter {
 public:
  template <typename T>
    requires std::is_arithmetic_v<T>
  ByteWriter& put(T value) {
    const auto* raw_bytes = reinterpret_cast<const uint8_t*>(&value);
    return raw({raw_bytes, sizeof(T)});
  }
  // Length and bytes, as GGUF writes strings.
  ByteWriter& put(std::string_view text) { return put(uint64_t{text.size()}).raw(text); }
  ByteWriter& put(const std::string& text) { return put(std::string_view(text)); }
  ByteWriter& raw(std::span<const uint8_t> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  ByteWriter& raw(std::string_view text) {
    return raw({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  }
  ByteWriter& pad_to(size_t alignment) {
    bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment);
    return *this;
  }
  const std::vector<uint8_t>& bytes() const { return bytes_; }

 private:
  std::vector<uint8_t> bytes_;
};

// The number by which GGUF names the type of a value.
template <typename T>
constexpr uint32_t gguf_type_of() {
  if constexpr (std::is_same_v<T, uint8_t>) return GGUF_TYPE_UINT8;
  if constexpr (std::is_same_v<T, int8_t>) return GGUF_TYPE_INT8;
  if constexpr (std::is_same_v<T, uint16_t>) return GGUF_TYPE_UINT16;
  if constexpr (std::is_same_v<T, int16_t>) return GGUF_TYPE_INT16;
  if constexpr (std::is_same_v<T, uint32_t>) return GGUF_TYPE_UINT32;
  if constexpr (std::is_same_v<T, int32_t>) return GGUF_TYPE_INT32;
  if constexpr (std::is_same_v<T, uint64_t>) return GGUF_TYPE_UINT64;
  if constexpr (std::is_same_v<T, int64_t>) return GGUF_TYPE_INT64;
  if constexpr (std::is_same_v<T, float>) return GGUF_TYPE_FLOAT32;
  if constexpr (std::is_same_v<T, double>) return GGUF_TYPE_FLOAT64;
  if constexpr (std::is_same_v<T, bool>) return GGUF_TYPE_BOOL;
  if constexpr (std::is_same_v<T, std::string>) return GGUF_TYPE_STRING;
}

// A tensor as the header declares it, and its data.
struct TensorEntry {
  std::string name = "t";
  std::vector<int64_t> ne = {4};  // innermost first
  uint32_t type = GGML_TYPE_F32;
  std::optional<uint64_t> offset = {};            // absent: where it belongs
  std::optional<uint32_t> n_dims = {};            // absent: ne.size()
  std::optional<uint64_t> data_bytes = {};        // absent: what shape and type say
  std::optional<std::vector<uint8_t>> data = {};  // absent: some pattern
};

// A GGUF file in the making. Public fields are written as they are.
class GgufBytes {
 public:
  std::string magic = "GGUF";
  uint32_t version = 3;
  std::optional<uint64_t> n_tensors = {};  // absent: as many as were added
  std::optional<uint64_t> n_keys = {};
  size_t alignment = 32;  // of the data; the key general.alignment is for the test to add
  std::vector<TensorEntry> tensors;

  GgufBytes() = default;

  // All of a file that was read, of all its parts. Requires: keys of the types above.
  explicit GgufBytes(const GgufFile& file) {
    const gguf_context_ptr source(gguf_init_from_buffer(
        file.part_bytes(0).data(), file.part_bytes(0).size(), {.no_alloc = true, .ctx = nullptr}));
    HOTSET_CHECK(source != nullptr);
    for (int64_t id = 0; id < gguf_get_n_kv(source.get()); ++id) copy_key(file, source.get(), id);
    for (const TensorInfo& info : file.tensors()) {
      const std::span<const uint8_t> data = file.tensor_bytes(info);
      tensors.push_back({.name = info.name,
                         .ne = {info.ne.begin(), info.ne.end()},
                         .type = static_cast<uint32_t>(info.type),
                         .data = std::vector<uint8_t>(data.begin(), data.end())});
    }
  }

  template <typename T>
  GgufBytes& key(std::string_view name, const T& value) {
    return raw_key(name, ByteWriter().put(gguf_type_of<T>()).put(value));
  }
  GgufBytes& key(std::string_view name, const char* value) { return key(name, std::string(value)); }
  template <typename T>
  GgufBytes& array(std::string_view name, const std::vector<T>& values) {
    ByteWriter out;
    out.put(uint32_t{GGUF_TYPE_ARRAY}).put(gguf_type_of<T>()).put(uint64_t{values.size()});
    for (const T& value : values) out.put(value);
    return raw_key(name, out);
  }
  // A key whose type and value are given as bytes.
  GgufBytes& raw_key(std::string_view name, const ByteWriter& type_and_value) {
    keys_.emplace_back(name, type_and_value.bytes());
    return *this;
  }
  GgufBytes& remove_key(std::string_view name) {
    std::erase_if(keys_, [&](const auto& key) { return key.first == name; });
    return *this;
  }
  template <typename T>
  GgufBytes& replace_key(std::string_view name, const T& value) {
    return remove_key(name).key(name, value);
  }

  GgufBytes& add(TensorEntry entry) {
    tensors.push_back(std::move(entry));
    return *this;
  }
  TensorEntry& tensor(std::string_view name) {
    const auto found = std::ranges::find(tensors, name, &TensorEntry::name);
    HOTSET_CHECK(found != tensors.end());
    return *found;
  }
  void remove_tensor(std::string_view name) {
    std::erase_if(tensors, [&](const TensorEntry& t) { return t.name == name; });
  }

  std::vector<uint8_t> bytes() const {
    ByteWriter out;
    out.raw(magic).put(version);
    out.put(n_tensors.value_or(tensors.size())).put(n_keys.value_or(keys_.size()));
    for (const auto& [name, type_and_value] : keys_) out.put(name).raw(type_and_value);
    uint64_t offset = 0;
    for (const TensorEntry& t : tensors) {
      out.put(t.name).put(t.n_dims.value_or(static_cast<uint32_t>(t.ne.size())));
      for (const int64_t n : t.ne) out.put(n);
      out.put(t.type).put(t.offset.value_or(offset));
      offset = (offset + n_bytes_of(t) + alignment - 1) / alignment * alignment;
    }
    if (tensors.empty()) return out.bytes();
    out.pad_to(alignment);
    for (const TensorEntry& t : tensors) {
      if (t.data) {
        out.raw(*t.data);
      } else {
        for (uint64_t i = 0; i < n_bytes_of(t); ++i) out.put(static_cast<uint8_t>(i * 7 + 1));
      }
      out.pad_to(alignment);
    }
    return out.bytes();
  }

  void write(const std::filesystem::path& path) const { write_bytes(path, bytes()); }

  // Writes PREFIX-00001-of-0000N.gguf ... with about the same number of tensors each; the keys are
  // in the first. Returns the first one's path.
  std::filesystem::path write_split(const std::filesystem::path& prefix, size_t n_parts) const {
    const auto path_of = [&](size_t part) {
      return fmt::format("{}-{:05}-of-{:05}.gguf", prefix.string(), part + 1, n_parts);
    };
    for (size_t i = 0; i < n_parts; ++i) {
      GgufBytes part;
      part.alignment = alignment;
      if (i == 0) part.keys_ = keys_;
      part.key("split.no", static_cast<uint16_t>(i));
      part.key("split.count", static_cast<uint16_t>(n_parts));
      part.key("split.tensors.count", static_cast<int32_t>(tensors.size()));
      const auto at = [&](size_t n) {
        return tensors.begin() + static_cast<ptrdiff_t>(tensors.size() * n / n_parts);
      };
      part.tensors.assign(at(i), at(i + 1));
      part.write(path_of(i));
    }
    return path_of(0);
  }

  static void write_bytes(const std::filesystem::path& path, std::span<const uint8_t> bytes) {
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()),
              static_cast<std::streamsize>(bytes.size()));
    HOTSET_CHECK(out.good());
  }

 private:
  // Zero for what has no size or an absurd one, so that wrong tensors can be declared.
  static uint64_t n_bytes_of(const TensorEntry& t) {
    if (t.data) return t.data->size();
    if (t.data_bytes) return *t.data_bytes;
    if (t.type >= GGML_TYPE_COUNT) return 0;
    const auto type = static_cast<ggml_type>(t.type);
    if (ggml_type_size(type) == 0) return 0;
    double n_bytes =
        static_cast<double>(ggml_type_size(type)) / static_cast<double>(ggml_blck_size(type));
    for (const int64_t n : t.ne) n_bytes *= static_cast<double>(n);
    constexpr double kMost = 1 << 24;
    return n_bytes > 0 && n_bytes < kMost ? static_cast<uint64_t>(n_bytes) : 0;
  }

  void copy_key(const GgufFile& file, const gguf_context* source, int64_t id) {
    const gguf_type type = gguf_get_kv_type(source, id);
    ByteWriter out;
    out.put(static_cast<uint32_t>(type));
    if (type == GGUF_TYPE_STRING) {
      out.put(file.find_string(gguf_get_key(source, id)).value().value());
    } else if (type != GGUF_TYPE_ARRAY) {
      out.raw({static_cast<const uint8_t*>(gguf_get_val_data(source, id)), width_of(type)});
    } else {
      const gguf_type element = gguf_get_arr_type(source, id);
      const size_t n = gguf_get_arr_n(source, id);
      out.put(static_cast<uint32_t>(element)).put(uint64_t{n});
      if (element == GGUF_TYPE_STRING) {
        const auto texts = file.find_strings(gguf_get_key(source, id));
        for (const std::string& text : texts.value().value()) out.put(text);
      } else {
        out.raw(
            {static_cast<const uint8_t*>(gguf_get_arr_data(source, id)), n * width_of(element)});
      }
    }
    raw_key(gguf_get_key(source, id), out);
  }

  static size_t width_of(gguf_type type) {
    switch (type) {
      case GGUF_TYPE_UINT8:
      case GGUF_TYPE_INT8:
      case GGUF_TYPE_BOOL:
        return 1;
      case GGUF_TYPE_UINT16:
      case GGUF_TYPE_INT16:
        return 2;
      case GGUF_TYPE_UINT64:
      case GGUF_TYPE_INT64:
      case GGUF_TYPE_FLOAT64:
        return 8;
      default:
        return 4;
    }
  }

  std::vector<std::pair<std::string, std::vector<uint8_t>>> keys_;  // name, type and value
};

}  // namespace hotset::model

#endif  // HOTSET_MODEL_GGUF_TESTING_H_
