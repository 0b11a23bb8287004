// A reply on its way from the scheduler's thread, where tokens become text, to the thread that
// answers the client: events in a queue. The queue holds no more than a context's worth of tokens,
// so a slow reader delays nobody and costs no more than that.
#ifndef HOTSET_SERVER_REPLY_H_
#define HOTSET_SERVER_REPLY_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "hotset/server/generation.h"
#include "hotset/server/stop_scanner.h"
#include "hotset/text/reply_format.h"
#include "hotset/text/reply_parser.h"
#include "hotset/text/stream_decoder.h"
#include "hotset/text/tokenizer.h"
#include "hotset/text/tool_calls.h"

namespace hotset::server {

// A token with what a client may want to know of it.
struct ReplyToken {
  GeneratedToken token;
  std::string bytes;
  std::vector<std::string> top_bytes;  // of token.top
};

struct ReplyEvent {
  int32_t choice = 0;
  std::string content = {};
  std::string reasoning = {};
  std::vector<text::ToolCall> tool_calls = {};
  std::optional<ReplyToken> token = {};  // if logprobs or tokens were asked for
  std::optional<ChoiceResult> end = {};  // of the choice; nothing of it follows
  std::string stop = {};                 // with end: the stop string that was found
};

// Thread-safe: one thread pushes, one takes.
class ReplyChannel {
 public:
  void push(ReplyEvent event);
  // The next event; nothing if none comes within the time.
  std::optional<ReplyEvent> take(double timeout_us);

 private:
  std::mutex mutex_;
  std::condition_variable comes_;
  std::deque<ReplyEvent> events_;
};

struct ReplyOptions {
  int32_t choice = 0;  // number in the answer
  std::vector<std::string> stop = {};
  bool keeps_tokens = false;  // events for every token
  // Of a chat: how the model sets reasoning and tool calls apart.
  std::optional<text::ReplyFormat> format = {};
};

// Makes text of the tokens of one choice. Called on the scheduler's thread.
// Thread-compatible.
class ReplySink final : public ChoiceSink {
 public:
  // Requires: the tokenizer outlives this.
  ReplySink(const text::Tokenizer& tokenizer, std::shared_ptr<ReplyChannel> channel,
            ReplyOptions options);

  bool on_token(const GeneratedToken& token) override;
  void on_end(const ChoiceResult& result) override;

 private:
  text::ReplyParts push(int32_t id);
  // What `parts` bring to the client.
  ReplyEvent event_of(text::ReplyParts parts);

  const text::Tokenizer& tokenizer_;
  std::shared_ptr<ReplyChannel> channel_;
  ReplyOptions options_;
  StopScanner scanner_;
  std::optional<text::ReplyParser> parser_;  // of a chat
  std::optional<text::StreamDecoder> decoder_;
};

// The bytes that a token stands for; nothing for ids without a text.
std::string token_bytes(const text::Tokenizer& tokenizer, int32_t id);

}  // namespace hotset::server

#endif  // HOTSET_SERVER_REPLY_H_
