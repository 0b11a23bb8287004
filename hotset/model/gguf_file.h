// A model file in the GGUF format, with all parts of a split one: its metadata and where its
// tensors lie. The bytes stay in the mapped files, which this object owns.
// Thread-safe: constant after opening; check() is for one thread at a time.
#ifndef HOTSET_MODEL_GGUF_FILE_H_
#define HOTSET_MODEL_GGUF_FILE_H_

#include <ggml-cpp.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/base/units.h"
#include "hotset/model/gguf_scan.h"
#include "hotset/model/mapped_file.h"

namespace hotset::model {

// Where a tensor lies. Everything was checked against the file: type known, size within bounds.
struct TensorInfo {
  std::string name;
  ggml_type type = GGML_TYPE_F32;
  std::array<int64_t, 4> ne = {1, 1, 1, 1};  // innermost dimension first, as ggml counts
  size_t part = 0;                           // which file of a split model
  uint64_t offset = 0;                       // of the first byte, from the start of that file
  Bytes n_bytes;
};

// "[768, 256] q8_0": outermost dimension first.
std::string describe(const TensorInfo& tensor);

class GgufFile {
 public:
  // Opens the file and, if its metadata say that it is the first of several parts
  // (NAME-00001-of-0000N.gguf), the others from the same folder.
  // Errors: kNotFound, kIo, kCorrupt, kUnsupported; the message names the file and what was found.
  static Result<GgufFile> open(const std::filesystem::path& path);

  // The same for one file that is already in memory; `bytes` must outlive the object.
  static Result<GgufFile> parse(std::span<const uint8_t> bytes, std::string name);

  const std::string& name() const { return name_; }
  size_t n_parts() const { return parts_.size(); }
  // All bytes of part `part`. Requires: part < n_parts().
  std::span<const uint8_t> part_bytes(size_t part) const;
  // The mapping of a part; null for a file parsed from memory.
  const MappedFile* part_mapping(size_t part) const;
  Bytes total_bytes() const;
  // MappedFile::check() of every part; the first error.
  Status check() const;

  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const TensorInfo* find_tensor(std::string_view name) const;
  std::span<const uint8_t> tensor_bytes(const TensorInfo& tensor) const;

  // Metadata. find_*: nothing if the key is absent; an error if it has another type or is out of
  // range. require_*: absence is an error as well. Messages name file, key, found and expected.
  // Texts come as the file has them, by their length: any bytes, NUL among them.
  bool has(std::string_view key) const;
  Result<std::optional<int64_t>> find_int(std::string_view key,
                                          int64_t min = std::numeric_limits<int64_t>::min(),
                                          int64_t max = std::numeric_limits<int64_t>::max()) const;
  Result<std::optional<double>> find_float(std::string_view key) const;
  Result<std::optional<bool>> find_bool(std::string_view key) const;
  Result<std::optional<std::string>> find_string(std::string_view key) const;
  Result<std::optional<std::vector<std::string>>> find_strings(std::string_view key) const;
  Result<std::optional<std::vector<int64_t>>> find_ints(std::string_view key) const;
  Result<std::optional<std::vector<float>>> find_floats(std::string_view key) const;
  Result<int64_t> require_int(std::string_view key, int64_t min, int64_t max) const;
  Result<double> require_float(std::string_view key) const;
  Result<std::string> require_string(std::string_view key) const;
  // Number of entries of an array of any type; nothing if absent or not an array.
  std::optional<int64_t> array_length(std::string_view key) const;

 private:
  struct Part {
    std::optional<MappedFile> file;
    std::span<const uint8_t> bytes;
    std::string name;
  };

  GgufFile() = default;
  Status add_part(Part part);
  Status add_tensors(const gguf_context* context, size_t part);
  // A file by itself, whatever it says of other parts.
  static Result<GgufFile> open_alone(const std::filesystem::path& path);
  // The file that must be part `index` (from 0) of `count`.
  static Result<Part> open_part(const std::filesystem::path& path, int64_t index, int64_t count);
  Status open_other_parts(const std::filesystem::path& path);
  int64_t key_id(std::string_view key) const;
  // The text whose length stands at byte `position` of the first part; `position` then is behind
  // it.
  Result<std::string> read_text(std::string_view key, uint64_t& position) const;
  std::unexpected<Error> wrong_type(std::string_view key, int64_t id,
                                    std::string_view expected) const;

  std::string name_;
  std::vector<Part> parts_;
  gguf_context_ptr metadata_;  // of the first part
  TextPositions text_positions_;
  std::unordered_map<std::string, int64_t> key_ids_;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string, size_t> tensor_index_;
};

}  // namespace hotset::model

#endif  // HOTSET_MODEL_GGUF_FILE_H_
