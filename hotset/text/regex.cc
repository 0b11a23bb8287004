#include "hotset/text/regex.h"

#include <array>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace hotset::text {
namespace {

// A step is one backtracking point. The pre-tokenizers need at most a few per character of a match,
// so this allows words of tens of millions of characters and ends anything else within seconds.
constexpr uint32_t kMaxSteps = 100'000'000;
// Memory of the interpreter, in KiB; the patterns need a few KiB. (PCRE2 10.30 and later keep
// their frames on the heap, never on the stack.)
constexpr uint32_t kMaxHeapKib = 64 * 1024;

struct ContextFree {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
using MatchContextPtr = std::unique_ptr<pcre2_match_context, ContextFree>;

// Read only once made, so all threads share it.
const pcre2_match_context* limits() {
  static const MatchContextPtr context = [] {
    MatchContextPtr made(pcre2_match_context_create(nullptr));
    if (made != nullptr) {
      pcre2_set_match_limit(made.get(), kMaxSteps);
      pcre2_set_heap_limit(made.get(), kMaxHeapKib);
    }
    return made;
  }();
  return context.get();
}

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  if (pcre2_get_error_message(code, buffer.data(), buffer.size()) < 0) {
    return fmt::format("PCRE2 error {}", code);
  }
  return reinterpret_cast<const char*>(buffer.data());
}

}  // namespace

void RegexScratch::Free::operator()(pcre2_real_match_data_8* data) const {
  pcre2_match_data_free(data);
}

void Regex::Free::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }

Result<Regex> Regex::compile(std::string_view pattern) {
  int code = 0;
  PCRE2_SIZE offset = 0;
  Regex regex(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                            PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &offset,
                            nullptr));
  if (regex.code_ == nullptr) {
    return make_error(ErrorCode::kInvalidArgument, "regular expression '{}': {} at offset {}",
                      pattern, message_of(code), offset);
  }
  // Where memory may not be made executable this fails, and matching is interpreted: slower, the
  // same result.
  pcre2_jit_compile(regex.code_.get(), PCRE2_JIT_COMPLETE);
  return regex;
}

Result<std::optional<RegexMatch>> Regex::find(std::string_view text, size_t from,
                                              RegexScratch& scratch) const {
  HOTSET_CHECK(from <= text.size());
  if (scratch.data_ == nullptr) {
    scratch.data_.reset(pcre2_match_data_create(1, nullptr));
    if (scratch.data_ == nullptr) {
      return make_error(ErrorCode::kOutOfMemory, "no memory to match a regular expression with");
    }
  }
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  // The limits are only read; PCRE2's parameter is not const for the sake of callouts.
  auto* context = const_cast<pcre2_match_context*>(limits());
  int code = pcre2_match(code_.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK,
                         scratch.data_.get(), context);
  if (code == PCRE2_ERROR_JIT_STACKLIMIT) {
    code = pcre2_match(code_.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                       scratch.data_.get(), context);
  }
  if (code == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (code < 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "matching a text of {} bytes from byte {} on: {} (limits: {} steps, {} KiB)",
                      text.size(), from, message_of(code), kMaxSteps, kMaxHeapKib);
  }
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(scratch.data_.get());
  return RegexMatch{offsets[0], offsets[1]};
}

}  // namespace hotset::text
