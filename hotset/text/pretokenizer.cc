#include "hotset/text/pretokenizer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <utility>

#include "hotset/base/printable.h"
#include "hotset/base/utf8.h"

namespace hotset::text {
namespace {

struct StageRow {
  CutKind kind = CutKind::kMatches;
  std::string pattern;
};
using StageRows = std::vector<StageRow>;

// The patterns, by what they are made of. `\s` and `\S` are Unicode's White_Space, see expand().
// Each class below is disjoint from the one before it where the two follow each other, or
// backtracks within a single run: a match costs a few steps per character, never the square.

// English contractions, in lower case or in any.
constexpr std::string_view kContraction = R"('(?:[sdmt]|ll|ve|re))";
constexpr std::string_view kContractionAnyCase = R"('(?i:[sdmt]|ll|ve|re))";
constexpr std::string_view kContractionIfAny = R"((?:'(?i:[sdmt]|ll|ve|re))?)";
// Letters, with one other character in front (a space, most often) that is no line end or number.
constexpr std::string_view kWord = R"([^\r\n\p{L}\p{N}]?\p{L}+)";
// Everything that is no space, letter or number, with the line ends behind it.
constexpr std::string_view kSymbols = R"( ?[^\s\p{L}\p{N}]+[\r\n]*)";
// Spaces up to the last line end; spaces but the last, which belongs to the next word; spaces.
constexpr std::string_view kSpaces = R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

std::string any_of(std::initializer_list<std::string_view> alternatives) {
  std::string pattern;
  for (const std::string_view alternative : alternatives) {
    if (!pattern.empty()) pattern += '|';
    pattern += alternative;
  }
  return pattern;
}

// Radford et al. 2019.
std::string gpt2_words() {
  return any_of({kContraction, R"( ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"});
}

// The family that began with cl100k: GPT-4, Llama 3, Qwen.
std::string cl100k_words(std::string_view numbers) {
  return any_of({kContractionAnyCase, kWord, numbers, kSymbols, kSpaces});
}

// Words that end where a lower-case letter is followed by an upper-case one (o200k: GPT-4o). Its
// definition is U*L+ or else U+L*, where U (upper and title case) and L (lower case) share the
// letters without case and the marks. U*L+ is spelled here so that it needs no nested backtracking:
// a run of U and what follows it in lower case, or else a run of U up to its last character that is
// in L as well.
std::string o200k_words(std::string_view suffix, std::string_view numbers) {
  constexpr std::string_view prefix = R"([^\r\n\p{L}\p{N}]?)";
  constexpr std::string_view upper = R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])";
  constexpr std::string_view lower = R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])";
  constexpr std::string_view both = R"([\p{Lm}\p{Lo}\p{M}])";
  const std::string falling = fmt::format(R"({}(?:{}*+(?=\p{{Ll}}){}+|{}*{}){})", prefix, upper,
                                          lower, upper, both, suffix);
  const std::string rising = fmt::format("{}{}+{}*{}", prefix, upper, lower, suffix);
  return any_of({falling, rising, numbers, R"( ?[^\s\p{L}\p{N}]+[\r\n/]*)", kSpaces});
}

// Chinese characters are words by themselves and no part of others: the second class is that of
// letters and marks without them, spelled as the complement of its complement. The pattern that
// Kimi K2 was published with also cuts at changes of case; the reference ids of the name do not.
std::string kimi_words() {
  constexpr std::string_view words =
      R"(\p{sc:Han}+|[^\r\n\p{L}\p{N}]?[^\p{sc:Han}\p{N}\p{P}\p{S}\p{Z}\p{C}]+)";
  return any_of(
      {std::string(words) + std::string(kContractionIfAny), R"(\p{N}{1,3})", kSymbols, kSpaces});
}

// ASCII punctuation with the ASCII word behind it, words with their marks, punctuation.
constexpr std::string_view kPunctuatedWords =
    R"([!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*)";

// The letters that have case or are Latin, Greek, Cyrillic, Armenian, Georgian, Cherokee, ...:
// the list that DeepSeek's first vocabularies were trained with.
constexpr std::string_view kDeepseekLetters =
    R"(A-Za-z\xB5\xC0-\xD6\xD8-\xF6\xF8-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF})"
    R"(\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C})"
    R"(\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5})"
    R"(\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B})"
    R"(\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45})"
    R"(\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4})"
    R"(\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB})"
    R"(\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115})"
    R"(\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139})"
    R"(\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4})"
    R"(\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F})"
    R"(\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17})"
    R"(\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB})"
    R"(\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943})";
// Chinese, most scripts between Samaritan and Kana, Hangul.
constexpr std::string_view kDeepseekEastAsian =
    R"([\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+)";
// Spaces at the end of what is cut. The look behind keeps a run of spaces elsewhere from being
// tried from each of its characters.
constexpr std::string_view kTrailingSpaces = R"((?<!\s)\s+\z)";

constexpr std::string_view kAsianScripts =
    R"([\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{F900}-\x{FAFF}\x{3040}-\x{309F}\x{30A0}-\x{30FF})"
    R"(\x{FF65}-\x{FF9F}\x{2F00}-\x{2FDF}\x{E40}-\x{E7F}\x{E80}-\x{EFF}\x{1780}-\x{17FF})"
    R"(\x{1000}-\x{109F}\x{AA60}-\x{AA7F}\x{A9E0}-\x{A9FF}\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}]+)";

// All but spaces and the punctuation of several scripts, which ends a word.
constexpr std::string_view kUnpunctuated =
    R"( ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{964}\x{6D4}\x{60C})]+)";

StageRows gpt2() { return {{.pattern = gpt2_words()}}; }
StageRows gpt2_single_digits() { return {{.pattern = R"(\p{N})"}, {.pattern = gpt2_words()}}; }
StageRows llama3() { return {{.pattern = cl100k_words(R"(\p{N}{1,3})")}}; }
StageRows qwen2() { return {{.pattern = cl100k_words(R"(\p{N})")}}; }
StageRows qwen35() {
  return {{.pattern = any_of({kContractionAnyCase, R"([^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+)", R"(\p{N})",
                              R"( ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)", kSpaces})}};
}
StageRows bailing() {
  return {{.pattern = any_of(
               {kContractionAnyCase, kWord, R"(\p{N})", kSymbols, R"(\s*[\r\n]|\s+(?!\S)|\s+)"})}};
}
StageRows seed_coder() {
  return {{.pattern = any_of(
               {kContractionAnyCase, kWord, R"(\p{N})", R"( ?[^\s\p{L}\p{N}\r\n]+)", kSpaces})}};
}
StageRows gpt4o() { return {{.pattern = o200k_words(kContractionIfAny, R"(\p{N}{1,3})")}}; }
StageRows tekken() { return {{.pattern = o200k_words("", R"(\p{N})")}}; }
StageRows kimi_k2() { return {{.pattern = kimi_words()}}; }
StageRows deepseek_v3() {
  return {{.pattern = R"(\p{N}{1,3})"},
          {.pattern = R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)"},
          {.pattern = any_of({kPunctuatedWords, kSpaces})}};
}
StageRows deepseek_llm() {
  return {{.pattern = R"([\r\n])"},
          {.pattern = fmt::format(R"(\s?[{}]+)", kDeepseekLetters)},
          {.pattern = R"(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F})"
                      R"(\x{3000}-\x{3002}]+)"},
          {.pattern = std::string(kTrailingSpaces)},
          {.pattern = std::string(kDeepseekEastAsian)},
          {.pattern = R"(\p{N}+)"}};
}
StageRows deepseek_coder() {
  return {{.pattern = R"([\r\n])"},
          {.pattern = R"(\s?\p{L}+)"},
          {.pattern = R"(\s?\p{P}+)"},
          {.pattern = std::string(kDeepseekEastAsian)},
          {.pattern = R"(\p{N})"}};
}
StageRows falcon() {
  return {{.pattern = R"([\p{P}$+<=>^~|`]+)"},
          {.pattern = gpt2_words()},
          {.pattern = R"([0-9][0-9][0-9])"}};
}
StageRows unnamed() {
  return {{.pattern = R"([\p{P}$+<=>^~|]+)"},
          {.pattern = gpt2_words()},
          {.pattern = R"(\p{N}+)"},
          {.pattern = R"([0-9][0-9][0-9])"}};
}
StageRows superbpe() {
  return {{.pattern = R"(\p{N}+)"}, {.kind = CutKind::kThousands, .pattern = R"([0-9]+)"}};
}
StageRows poro() { return {{.pattern = std::string(kUnpunctuated)}}; }
StageRows viking() { return {{.pattern = std::string(kUnpunctuated)}, {.pattern = R"(\p{N})"}}; }
StageRows afmoe() {
  return {{.kind = CutKind::kDigitGroups, .pattern = R"(\p{N}+)"},
          {.pattern = std::string(kAsianScripts)},
          {.pattern = any_of({kPunctuatedWords, kSpaces})}};
}

struct Row {
  std::string_view name;
  StageRows (*stages)();
  Pretokenizer::Traits traits = {};
};

constexpr Pretokenizer::Traits kLlama3Traits = {.whole_words_first = true, .add_bos = true};

// In alphabetical order.
constexpr Row kRows[] = {
    {"afmoe", afmoe},
    {"bailingmoe", bailing},
    {"bailingmoe2", bailing},
    {"bloom", poro},
    {"chatglm-bpe", llama3},
    {"codeshell", gpt2_single_digits},
    {"command-r", gpt2_single_digits},
    {"dbrx", llama3},
    {"deepseek-coder", deepseek_coder},
    {"deepseek-llm", deepseek_llm},
    {"deepseek-r1-qwen", qwen2},
    {"deepseek-v3", deepseek_v3},
    {"default", unnamed},
    {"exaone", gpt2_single_digits},
    {"exaone4", gpt2},
    {"falcon", falcon},
    {"falcon-h1", llama3, kLlama3Traits},
    {"falcon3", llama3, kLlama3Traits},
    {"glm4", llama3},
    {"gpt-2", gpt2},
    {"gpt-4o", gpt4o},
    {"gpt3-finnish", poro},
    {"granite-docling", gpt2},
    {"grok-2", qwen2},
    {"hunyuan", qwen2},
    {"hunyuan-dense", deepseek_v3},
    {"jais", gpt2},
    {"kanana2", gpt4o},
    {"kimi-k2", kimi_k2},
    {"lfm2", llama3, kLlama3Traits},
    {"llada-moe", bailing},
    {"llama-bpe", llama3, kLlama3Traits},
    {"llama-v3", llama3, kLlama3Traits},
    {"llama3", llama3, kLlama3Traits},
    {"llama4", gpt4o},
    {"megrez", qwen2},
    {"mellum", gpt2},
    {"minerva-7b", gpt2_single_digits},
    {"minimax-m2", gpt4o},
    {"mpt", gpt2},
    {"olmo", gpt2},
    {"phi-2", gpt2},
    {"pixtral", llama3, kLlama3Traits},
    {"poro-chat", poro},
    {"qwen2", qwen2},
    {"qwen35", qwen35},
    {"refact", gpt2_single_digits},
    {"seed-coder", seed_coder},
    {"smaug-bpe", llama3},
    {"smollm", gpt2_single_digits},
    {"solar-open", qwen2},
    {"stablelm2", qwen2},
    {"starcoder", gpt2_single_digits},
    {"superbpe", superbpe},
    {"tekken", tekken, {.whole_words_first = true, .add_bos = true}},
    {"trillion", gpt2},
    {"viking", viking},
};

// The pattern with \s and \S spelled out: PCRE2's own \s takes U+180E too, which has not been
// white space since Unicode 6.3.
std::string expand(std::string_view pattern) {
  std::string expanded;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const std::string_view escape = pattern.substr(i, 2);
    if (escape == R"(\s)" || escape == R"(\S)") {
      expanded += escape == R"(\s)" ? R"(\p{wspace})" : R"(\P{wspace})";
      ++i;
    } else if (pattern[i] == '\\') {
      expanded += escape;
      ++i;
    } else {
      expanded += pattern[i];
    }
  }
  return expanded;
}

// Cuts `run` before every three characters, counted from its end; the first group has what is left.
// The characters may be of any length.
void cut_in_threes(std::string_view run, std::vector<std::string_view>& words) {
  std::vector<size_t> starts;
  for (size_t at = 0; at < run.size(); at += next_utf8(run.substr(at)).n_bytes)
    starts.push_back(at);
  size_t begin = 0;
  for (size_t i = starts.size() % 3; i < starts.size(); i += 3) {
    if (starts[i] > begin) words.push_back(run.substr(begin, starts[i] - begin));
    begin = starts[i];
  }
  words.push_back(run.substr(begin));
}

// The cuts of one stage inside `text`.
Status cut(CutKind kind, const Regex& regex, std::string_view text, RegexScratch& scratch,
           std::vector<std::string_view>& words) {
  size_t begin = 0;  // of the word being collected
  for (size_t from = 0; from < text.size();) {
    HOTSET_TRY(const std::optional<RegexMatch> match, regex.find(text, from, scratch));
    if (!match) break;
    HOTSET_CHECK(match->end > match->begin);  // no pattern of the table matches nothing
    from = match->end;
    const std::string_view run = text.substr(match->begin, match->end - match->begin);
    if (kind == CutKind::kThousands) {
      // Digits of this kind are ASCII: one byte each.
      for (size_t at = match->begin + run.size() % 3; at < match->end; at += 3) {
        if (at > begin) words.push_back(text.substr(begin, at - begin));
        begin = at;
      }
      continue;
    }
    if (match->begin > begin) words.push_back(text.substr(begin, match->begin - begin));
    begin = match->end;
    if (kind == CutKind::kDigitGroups) {
      cut_in_threes(run, words);
    } else {
      words.push_back(run);
    }
  }
  if (begin < text.size()) words.push_back(text.substr(begin));
  return {};
}

}  // namespace

std::vector<std::string_view> known_pretokenizers() {
  std::vector<std::string_view> names;
  for (const Row& row : kRows) names.push_back(row.name);
  return names;
}

Result<Pretokenizer> Pretokenizer::create(std::string_view name) {
  const auto* row = std::ranges::find(kRows, name, &Row::name);
  if (row == std::ranges::end(kRows)) {
    return make_error(ErrorCode::kUnsupported,
                      "pre-tokenizer (tokenizer.ggml.pre): found '{}', expected one of {}",
                      printable(name), fmt::join(known_pretokenizers(), ", "));
  }
  Pretokenizer made;
  made.traits_ = row->traits;
  for (const StageRow& stage : row->stages()) {
    HOTSET_TRY(Regex regex, Regex::compile(expand(stage.pattern)));
    made.stages_.push_back({stage.kind, std::move(regex)});
  }
  return made;
}

Status Pretokenizer::split(std::string_view text, std::vector<std::string_view>& words) const {
  RegexScratch scratch;
  while (!text.empty()) {
    const size_t n_valid = valid_utf8_prefix(text);
    if (n_valid > 0) HOTSET_RETURN_IF_ERROR(split_valid(text.substr(0, n_valid), scratch, words));
    size_t n_invalid = 0;
    while (n_valid + n_invalid < text.size()) {
      const Utf8Step step = next_utf8(text.substr(n_valid + n_invalid));
      if (step.kind == Utf8Kind::kValid) break;
      n_invalid += step.n_bytes;
    }
    if (n_invalid > 0) words.push_back(text.substr(n_valid, n_invalid));
    text.remove_prefix(n_valid + n_invalid);
  }
  return {};
}

Status Pretokenizer::split_valid(std::string_view text, RegexScratch& scratch,
                                 std::vector<std::string_view>& words) const {
  if (stages_.size() == 1) {
    return cut(stages_[0].kind, stages_[0].regex, text, scratch, words);
  }
  std::vector<std::string_view> coarse = {text};
  std::vector<std::string_view> fine;
  for (const Stage& stage : stages_) {
    fine.clear();
    for (const std::string_view piece : coarse) {
      HOTSET_RETURN_IF_ERROR(cut(stage.kind, stage.regex, piece, scratch, fine));
    }
    std::swap(coarse, fine);
  }
  words.insert(words.end(), coarse.begin(), coarse.end());
  return {};
}

}  // namespace hotset::text
