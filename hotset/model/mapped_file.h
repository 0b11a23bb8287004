// A file mapped read-only into memory. Move-only; the mapping lives as long as the object.
//
// What cannot be read any more, because another process has cut the file or the disk fails, reads
// as zeros instead of ending the process (SIGBUS), and check() says that this happened. What a cut
// has taken stays lost, whatever the file gets in its place: it is met again whenever it is read.
// Thread-safe to read: the bytes are constant but for that; check() is for one thread at a time.
#ifndef HOTSET_MODEL_MAPPED_FILE_H_
#define HOTSET_MODEL_MAPPED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "hotset/base/error.h"

namespace hotset::model {

struct Mapping;

class MappedFile {
 public:
  // Errors: kNotFound, kIo (the system's reason), kCorrupt (empty file), kInvalidArgument (not a
  // regular file). The first call takes over SIGBUS; faults elsewhere go on to whom they went
  // before.
  static Result<MappedFile> open(const std::filesystem::path& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::filesystem::path& path() const { return path_; }
  std::span<const uint8_t> bytes() const { return bytes_; }

  // Whether all that was read since the last call was what the file held when it was opened. After
  // an error the next call tells of what was read since then.
  // Errors: kIo, naming the file, its length found and expected, or the byte.
  Status check() const;

  // Hints to the kernel. `sequential` before a load, `random` for experts that are read on demand.
  void advise_sequential() const;
  void advise_random() const;

 private:
  MappedFile(std::filesystem::path path, std::span<const uint8_t> bytes, Mapping* mapping);
  void unmap();

  std::filesystem::path path_;
  std::span<const uint8_t> bytes_;
  Mapping* mapping_;  // null once moved from
};

}  // namespace hotset::model

#endif  // HOTSET_MODEL_MAPPED_FILE_H_
