#include "hotset/base/error.h"

#include <cstdio>
#include <cstdlib>

namespace hotset {

std::string_view error_code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid argument";
    case ErrorCode::kNotFound:
      return "not found";
    case ErrorCode::kIo:
      return "input/output";
    case ErrorCode::kCorrupt:
      return "corrupt";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kOutOfMemory:
      return "out of memory";
    case ErrorCode::kDevice:
      return "device";
    case ErrorCode::kCancelled:
      return "cancelled";
    case ErrorCode::kInternal:
      return "internal";
  }
  return "unknown";
}

std::unexpected<Error> add_context(Error error, std::string_view context) {
  error.message.insert(0, fmt::format("{}: ", context));
  return std::unexpected(std::move(error));
}

void check_failed(const char* file, int line, const char* what) {
  std::fprintf(stderr, "hotset: internal error at %s:%d: check failed: %s\n", file, line, what);
  std::abort();
}

}  // namespace hotset
