#include "hotset/base/text_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace hotset {

Result<std::string> read_text(const std::string& path) {
  constexpr size_t kMaxBytes = size_t{1} << 30;
  std::FILE* file = path == "-" ? stdin : std::fopen(path.c_str(), "rb");
  if (file == nullptr) {
    return make_error(errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
                      "{}: cannot open: {}", path, std::strerror(errno));
  }
  std::string text;
  char buffer[1 << 16];
  size_t n = 0;
  while ((n = std::fread(buffer, 1, sizeof(buffer), file)) > 0 && text.size() <= kMaxBytes) {
    text.append(buffer, n);
  }
  const bool failed = std::ferror(file) != 0;
  const int error = errno;
  if (file != stdin) std::fclose(file);
  if (failed) {
    return make_error(ErrorCode::kIo, "{}: cannot read: {}", path, std::strerror(error));
  }
  if (text.size() > kMaxBytes) {
    return make_error(ErrorCode::kInvalidArgument, "{}: found more than 1 GiB, expected a text",
                      path);
  }
  return text;
}

Status write_text_file(const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) {
    return make_error(ErrorCode::kIo, "{}: cannot be written: {}", path, std::strerror(errno));
  }
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const int write_error = errno;
  const bool closed = std::fclose(file) == 0;
  if (written && closed) return {};
  return make_error(ErrorCode::kIo, "{}: cannot be written: {}", path,
                    std::strerror(written ? errno : write_error));
}

}  // namespace hotset
