#include "hotset/text/reply_parser.h"

#include <utility>

namespace hotset::text {
namespace {

// Says which signs of `format` are tokens that cannot be written otherwise.
ReplyFormat with_token_signs(ReplyFormat format, const Tokenizer& tokenizer) {
  for (std::string& sign : signs_of(format)) {
    const auto id = tokenizer.find_token(sign);
    if (id && *tokenizer.type(*id) == TokenType::kControl)
      format.token_signs.push_back(std::move(sign));
  }
  return format;
}

}  // namespace

ReplyParser::ReplyParser(const Tokenizer& tokenizer, ReplyFormat format)
    : tokenizer_(&tokenizer),
      decoder_(tokenizer, {.continues_text = true}),
      splitter_(with_token_signs(format, tokenizer)) {
  for (std::string& sign : with_token_signs(std::move(format), tokenizer).token_signs) {
    const int32_t id = tokenizer.find_token(sign).value();
    signs_.emplace(id, std::move(sign));
  }
}

ReplyParts ReplyParser::take(ReplyParts parts) {
  reply_.append(parts);
  return parts;
}

Result<ReplyParts> ReplyParser::push(int32_t id) {
  if (id >= tokenizer_->n_tokens()) return ReplyParts();
  if (const auto sign = signs_.find(id); sign != signs_.end()) {
    ReplyParts parts = splitter_.push(decoder_.finish());
    parts.append(splitter_.push_sign(sign->second));
    return take(std::move(parts));
  }
  HOTSET_TRY(const std::string text, decoder_.push(id));
  return take(splitter_.push(text));
}

ReplyParts ReplyParser::finish() {
  ReplyParts parts = splitter_.push(decoder_.finish());
  parts.append(splitter_.finish());
  return take(std::move(parts));
}

}  // namespace hotset::text
