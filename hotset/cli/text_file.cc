#include "hotset/cli/text_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace hotset::cli {

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

}  // namespace hotset::cli
