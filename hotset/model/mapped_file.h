// A file mapped read-only into memory. Move-only; the mapping lives as long as the object.
// Thread-safe: the bytes are constant. A file that another process truncates while it is mapped
// ends this process (SIGBUS), as it does any program that maps files.
#ifndef HOTSET_MODEL_MAPPED_FILE_H_
#define HOTSET_MODEL_MAPPED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "hotset/base/error.h"

namespace hotset::model {

class MappedFile {
 public:
  // Errors: kNotFound, kIo (the system's reason), kCorrupt (empty file), kInvalidArgument (not a
  // regular file).
  static Result<MappedFile> open(const std::filesystem::path& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::filesystem::path& path() const { return path_; }
  std::span<const uint8_t> bytes() const { return bytes_; }

  // Hints to the kernel. `sequential` before a load, `random` for experts that are read on demand.
  void advise_sequential() const;
  void advise_random() const;

 private:
  MappedFile(std::filesystem::path path, std::span<const uint8_t> bytes);
  void unmap();

  std::filesystem::path path_;
  std::span<const uint8_t> bytes_;
};

}  // namespace hotset::model

#endif  // HOTSET_MODEL_MAPPED_FILE_H_
