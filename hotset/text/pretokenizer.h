// Cuts a text into words before byte-level BPE, which never merges across a cut. Which cuts is a
// property of the vocabulary: a model file names it (`tokenizer.ggml.pre`), and the table in
// pretokenizer.cc says what each name means.
// Thread-safe: constant after creation.
#ifndef HOTSET_TEXT_PRETOKENIZER_H_
#define HOTSET_TEXT_PRETOKENIZER_H_

#include <string>
#include <string_view>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/text/regex.h"

namespace hotset::text {

// The names that Pretokenizer::create() knows, in alphabetical order.
std::vector<std::string_view> known_pretokenizers();

// One step of cutting; `pattern` is a regular expression.
enum class CutKind {
  kMatches,      // each match is a word, and so is what lies between two of them
  kDigitGroups,  // the same, and each match is cut into threes counted from its right: 1|234|567
  kThousands,    // a cut in front of each three digits of a match so counted, no other: a1|234b
};

class Pretokenizer {
 public:
  // What a vocabulary of this name does besides cutting.
  struct Traits {
    // A word that is a token as a whole is that token, whatever the merges would give.
    bool whole_words_first = false;
    // Whether texts begin with BOS where the model file does not say.
    bool add_bos = false;
  };

  // Errors: kUnsupported: the name is unknown; the message lists the known ones.
  static Result<Pretokenizer> create(std::string_view name);

  // Appends the words of `text` to `words`, in order: views into `text` that cover it without gaps
  // and without empty words. Bytes that are not valid UTF-8 make words of their own, one for each
  // run of them.
  // Errors: those of Regex::find().
  Status split(std::string_view text, std::vector<std::string_view>& words) const;

  const Traits& traits() const { return traits_; }

 private:
  Status split_valid(std::string_view text, RegexScratch& scratch,
                     std::vector<std::string_view>& words) const;

  Traits traits_;
  struct Stage {
    CutKind kind;
    Regex regex;
  };
  std::vector<Stage> stages_;  // each cuts the words of the one before it
};

}  // namespace hotset::text

#endif  // HOTSET_TEXT_PRETOKENIZER_H_
