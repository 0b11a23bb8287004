// What a model writes as its reply, token by token, taken apart (reply_splitter.h). Signs that are
// control tokens of the vocabulary count only as such: the same letters in ordinary tokens are
// text. Thread-compatible.
#ifndef HOTSET_TEXT_REPLY_PARSER_H_
#define HOTSET_TEXT_REPLY_PARSER_H_

#include <cstdint>
#include <string>
#include <unordered_map>

#include "hotset/base/error.h"
#include "hotset/text/reply_format.h"
#include "hotset/text/reply_splitter.h"
#include "hotset/text/stream_decoder.h"
#include "hotset/text/tokenizer.h"

namespace hotset::text {

class ReplyParser {
 public:
  // `format` as from choose_reply_format(); its token_signs are found here.
  // Requires: `tokenizer` outlives this.
  ReplyParser(const Tokenizer& tokenizer, ReplyFormat format);

  // What the next token makes certain; often nothing. Tokens that the vocabulary has no text for
  // give nothing. Errors: as StreamDecoder::push().
  Result<ReplyParts> push(int32_t id);
  // The end of the reply: the last parts.
  ReplyParts finish();

  // All parts so far.
  const ReplyParts& reply() const { return reply_; }

 private:
  ReplyParts take(ReplyParts parts);

  const Tokenizer* tokenizer_;
  StreamDecoder decoder_;
  std::unordered_map<int32_t, std::string> signs_;  // by token
  ReplySplitter splitter_;
  ReplyParts reply_;
};

}  // namespace hotset::text

#endif  // HOTSET_TEXT_REPLY_PARSER_H_
