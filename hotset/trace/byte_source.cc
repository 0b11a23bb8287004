#include "hotset/trace/byte_source.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace hotset::trace {

Result<std::unique_ptr<FileSource>> FileSource::open(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    return make_error(ErrorCode::kIo, "{}: is a folder, expected a file", path);
  }
  FilePtr file(std::fopen(path.c_str(), "rb"));
  if (!file) {
    const int error = errno;
    return make_error(error == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
                      "{}: cannot be opened: {}", path, std::strerror(error));
  }
  // The reader above has a buffer of its own.
  std::setvbuf(file.get(), nullptr, _IONBF, 0);
  return std::unique_ptr<FileSource>(new FileSource(std::move(file), path));
}

Result<size_t> FileSource::read(std::span<std::byte> out) {
  const size_t n_read = std::fread(out.data(), 1, out.size(), file_.get());
  if (n_read == 0 && std::ferror(file_.get())) {
    return make_error(ErrorCode::kIo, "{}: cannot be read: {}", path_, std::strerror(errno));
  }
  return n_read;
}

Result<size_t> MemorySource::read(std::span<std::byte> out) {
  const size_t n_read = std::min(out.size(), rest_.size());
  if (n_read > 0) std::memcpy(out.data(), rest_.data(), n_read);
  rest_ = rest_.subspan(n_read);
  return n_read;
}

}  // namespace hotset::trace
