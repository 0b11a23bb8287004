// Where the bytes of a trace come from: a file, or memory in tests and fuzzers.
// A source owns what it reads from; MemorySource only borrows its bytes.
// Thread-compatible: one reader per source.
#ifndef HOTSET_TRACE_BYTE_SOURCE_H_
#define HOTSET_TRACE_BYTE_SOURCE_H_

#include <cstddef>
#include <cstdio>
#include <memory>
#include <span>
#include <string>

#include "hotset/base/error.h"

namespace hotset::trace {

// Bytes in order, from the first to the last.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Fills the front of `out` with the next bytes and returns how many it wrote; 0 means the end.
  // Requires: out is not empty. Errors: kIo, the system refused to read.
  virtual Result<size_t> read(std::span<std::byte> out) = 0;
};

// A file, a pipe or a device, read in order.
class FileSource : public ByteSource {
 public:
  // Errors: kNotFound, there is no such file; kIo, it cannot be opened or is a folder.
  static Result<std::unique_ptr<FileSource>> open(const std::string& path);

  Result<size_t> read(std::span<std::byte> out) override;

 private:
  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  using FilePtr = std::unique_ptr<std::FILE, CloseFile>;

  FileSource(FilePtr file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}

  FilePtr file_;
  std::string path_;
};

// Bytes in memory that the caller keeps alive.
class MemorySource : public ByteSource {
 public:
  explicit MemorySource(std::span<const std::byte> bytes) : rest_(bytes) {}

  Result<size_t> read(std::span<std::byte> out) override;

 private:
  std::span<const std::byte> rest_;
};

}  // namespace hotset::trace

#endif  // HOTSET_TRACE_BYTE_SOURCE_H_
