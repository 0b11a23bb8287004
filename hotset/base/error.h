// Errors as values: every expected failure of hotset is a returned `Result<T>` (docs/adr/0002).
// An `Error` owns its message. No exception leaves a folder.
// Thread-compatible: plain values.
#ifndef HOTSET_BASE_ERROR_H_
#define HOTSET_BASE_ERROR_H_

#include <fmt/core.h>

#include <expected>
#include <string>
#include <string_view>
#include <utility>

namespace hotset {

// What went wrong, for code that must decide. People read the message.
enum class ErrorCode {
  kInvalidArgument,  // a caller's value (flag, id, option) is outside what is accepted
  kNotFound,         // a file, key, tensor, device or name does not exist
  kIo,               // the system refused to open, read or write
  kCorrupt,          // data contradicts its format: truncated, inconsistent, out of bounds
  kUnsupported,      // well-formed, but hotset cannot do it
  kOutOfMemory,      // memory was refused, or a plan does not fit
  kDevice,           // a device failed or vanished
  kCancelled,        // the caller asked to stop
  kInternal,         // a bug in hotset
};

// "invalid argument", "corrupt", ... for logs and tests.
std::string_view error_code_name(ErrorCode code);

struct [[nodiscard]] Error {
  ErrorCode code;
  std::string message;  // names the file or field, what was found and what was expected
};

template <typename T>
using Result = std::expected<T, Error>;
using Status = Result<void>;

// An error with a formatted message, ready to be returned from a function that returns a Result.
template <typename... Args>
std::unexpected<Error> make_error(ErrorCode code, fmt::format_string<Args...> format,
                                  Args&&... args) {
  return std::unexpected(Error{code, fmt::format(format, std::forward<Args>(args)...)});
}

// The same error with "context: " before its message.
std::unexpected<Error> add_context(Error error, std::string_view context);

// Ends the process with a message: for bugs only, unreachable from input.
[[noreturn]] void check_failed(const char* file, int line, const char* what);

}  // namespace hotset

#define HOTSET_CONCAT_INNER(a, b) a##b
#define HOTSET_CONCAT(a, b) HOTSET_CONCAT_INNER(a, b)

// HOTSET_TRY(auto x, expr): x is the value of the Result expr, or its error is returned.
#define HOTSET_TRY(declaration, expr) \
  HOTSET_TRY_INNER(HOTSET_CONCAT(hotset_try_, __LINE__), declaration, expr)
// `declaration` declares a variable, so it cannot stand in parentheses.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define HOTSET_TRY_INNER(result, declaration, expr)               \
  auto result = (expr);                                           \
  if (!result) return std::unexpected(std::move(result).error()); \
  declaration = *std::move(result)
// NOLINTEND(bugprone-macro-parentheses)

// Returns the error of a Status, if it is one.
#define HOTSET_RETURN_IF_ERROR(expr)                            \
  do {                                                          \
    if (auto hotset_status = (expr); !hotset_status)            \
      return std::unexpected(std::move(hotset_status).error()); \
  } while (false)

// For bugs only. Stays on in release builds.
#define HOTSET_CHECK(condition) \
  ((condition) ? void(0) : ::hotset::check_failed(__FILE__, __LINE__, #condition))

#endif  // HOTSET_BASE_ERROR_H_
