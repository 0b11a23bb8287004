// Reads the hyperparameters "ARCH.KEY" of one architecture from a file's metadata. Keeps the first
// error, so that a list of reads stays a list: read, read, then status().
// Thread-compatible.
#ifndef HOTSET_MODEL_SPEC_READER_H_
#define HOTSET_MODEL_SPEC_READER_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "hotset/base/error.h"
#include "hotset/model/gguf_file.h"

namespace hotset::model {

class SpecReader {
 public:
  // `file` must outlive the reader.
  SpecReader(const GgufFile& file, std::string_view architecture);

  // Errors (kept): kCorrupt (absent, another type, outside [min, max]); the result is then `min`.
  int64_t require(std::string_view key, int64_t min, int64_t max);
  float require_float(std::string_view key);
  // Absent or zero, which files write for "unset": `otherwise`.
  // Errors (kept): kCorrupt (another type, outside [0, max]).
  int64_t find(std::string_view key, int64_t max, int64_t otherwise);
  float find(std::string_view key, float otherwise);
  bool find(std::string_view key, bool otherwise);
  // Absent: empty.
  std::string find(std::string_view key);

  void fail(std::unexpected<Error> error);
  // "ARCH.KEY", for messages.
  std::string key_name(std::string_view key) const { return prefix_ + std::string(key); }
  const GgufFile& file() const { return file_; }
  // The first error of all reads.
  Status status() const { return status_; }

 private:
  template <typename T>
  T keep(Result<T> result, T otherwise);

  const GgufFile& file_;
  std::string prefix_;
  Status status_;
};

}  // namespace hotset::model

#endif  // HOTSET_MODEL_SPEC_READER_H_
