// Marks in a text that keep special tokens from being recognised in it, so that what someone writes
// in a message cannot end a turn or begin another one.
//
// A mark is the noncharacter U+FDD0. A chat template gets the contents of messages with a mark
// behind the first character of everything that could be or become the name of a special token; it
// puts them between its own texts and tokens; the tokenizer looks for special tokens in the result
// (in which a mark is a character like any other) and then drops the marks (EncodeOptions). Texts
// without such places are not changed, so a template finds in them what it looks for.
//
// What counts as such a place, whatever the case of the letters: the text goes on like a special
// token to the end of the token, or to the end of the text, or up to white space or a character
// that a special token or a tag may begin with - because a template joins texts, trims them and
// cuts tags out of them. A template that rewrites texts in other ways (replaces letters, say) could
// make a special token of one. Thread-compatible: constant after creation.
#ifndef HOTSET_TEXT_TEXT_MARKS_H_
#define HOTSET_TEXT_TEXT_MARKS_H_

#include <string>
#include <string_view>
#include <vector>

namespace hotset::text {

inline constexpr std::string_view kTextMark = "\uFDD0";
// Also taken out of texts, for the use of those who pass them on.
inline constexpr std::string_view kReservedMark = "\uFDD1";

class TextMarker {
 public:
  // `tokens`: names of special tokens; empty ones are ignored.
  explicit TextMarker(std::vector<std::string> tokens);

  // `text` with marks in it. U+FDD0 and U+FDD1 of its own become U+FFFD.
  std::string marked(std::string_view text) const;

 private:
  bool may_begin_token(std::string_view rest) const;

  std::vector<std::string> tokens_;  // in lower case (ASCII), sorted
  std::string tag_begins_;           // bytes that tokens and tags begin with
};

// `text` without its marks.
std::string without_marks(std::string_view text);

}  // namespace hotset::text

#endif  // HOTSET_TEXT_TEXT_MARKS_H_
