// A compiled regular expression (PCRE2, UTF-8, Unicode properties, just-in-time compiled where the
// system allows it). Owns the compiled code.
// Thread-safe: constant after compiling; each matching thread brings its own RegexScratch.
#ifndef HOTSET_TEXT_REGEX_H_
#define HOTSET_TEXT_REGEX_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "hotset/base/error.h"

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;

namespace hotset::text {

// The working memory of matching. Thread-compatible: one per thread at a time.
class RegexScratch {
 private:
  friend class Regex;
  struct Free {
    void operator()(pcre2_real_match_data_8* data) const;
  };
  std::unique_ptr<pcre2_real_match_data_8, Free> data_;  // made by the first match
};

struct RegexMatch {
  size_t begin = 0;  // byte offsets into the text
  size_t end = 0;
};

class Regex {
 public:
  // Errors: kInvalidArgument: the pattern is malformed; the message has it and the offset.
  static Result<Regex> compile(std::string_view pattern);

  // The first match in `text` at or after the byte `from`; nothing if there is none.
  // Requires: text is valid UTF-8, `from` is the start of a character or the end.
  // Errors: kInvalidArgument: the match took more steps or memory than is allowed, so no input can
  // hang the program or exhaust the stack. kOutOfMemory: none for the scratch.
  Result<std::optional<RegexMatch>> find(std::string_view text, size_t from,
                                         RegexScratch& scratch) const;

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };
  explicit Regex(pcre2_real_code_8* code) : code_(code) {}

  std::unique_ptr<pcre2_real_code_8, Free> code_;
};

}  // namespace hotset::text

#endif  // HOTSET_TEXT_REGEX_H_
