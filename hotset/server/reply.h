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
#include <span>
#include <string>
#include <string_view>
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
  std::string bytes = {};
  std::vector<std::string> top_bytes = {};  // of token.top
  bool has_logprob = true;                  // not the first one of a prompt
  // Characters of the choice's text in front of it; of a completion only.
  size_t text_offset = 0;
};

struct ReplyEvent {
  int32_t choice = 0;
  std::string content = {};
  std::string reasoning = {};
  std::vector<text::ToolCall> tool_calls = {};
  // If logprobs or tokens were asked for. They may come later than their text, never without any
  // of it: what a stop string cut off is not among them.
  std::vector<ReplyToken> tokens = {};
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

// The prompt in front of the answer.
struct Echo {
  std::string text = {};
  // The first token is none of the text's: it was put in front.
  bool has_hidden_token = false;
};

struct ReplyOptions {
  int32_t choice = 0;  // number in the answer
  std::vector<std::string> stop = {};
  bool keeps_tokens = false;  // events have tokens
  // Of a chat: how the model sets reasoning and tool calls apart.
  std::optional<text::ReplyFormat> format = {};
  bool one_call = false;  // the reply ends behind the first tool call
  std::optional<Echo> echo = {};
};

// Makes text of tokens and says where in it each one begins.
// Thread-compatible.
class TokenPlaces {
 public:
  struct Step {
    std::string text;  // that the token makes certain
    size_t begin;      // bytes of all text in front of what the token says
    size_t offset;     // characters of it
  };

  // `n_characters` stand in front. Requires: the tokenizer outlives this.
  TokenPlaces(const text::Tokenizer& tokenizer, text::DecodeOptions options, size_t n_characters)
      : tokenizer_(tokenizer), decoder_(tokenizer, options), n_characters_(n_characters) {}

  Step push(int32_t id);
  std::string finish() { return decoder_.finish(); }

 private:
  const text::Tokenizer& tokenizer_;
  text::StreamDecoder decoder_;
  size_t n_bytes_ = 0;
  size_t n_characters_;
};

// Tokens of a reply that wait until it is certain that a stop string leaves something of them. It
// cuts what the model says; the tokens also stand for signs and thoughts. So places are counted in
// the whole text, in which parts of the reply are looked for as they come out.
// Thread-compatible.
class HeldTokens {
 public:
  // The next token, and where it stands.
  void push(ReplyToken token, const TokenPlaces::Step& place);
  // A part of the text, given to the client as what the model says or thinks.
  void said(std::string_view content);
  void thought(std::string_view reasoning) { (void)find(reasoning); }
  // All text so far is known for what it is.
  void settle() { unknown_.clear(); }
  // The tokens that begin in front of byte `n_content` of what the model says, or in front of all
  // that is not known yet.
  std::vector<ReplyToken> take(size_t n_content);
  std::vector<ReplyToken> take_all();

 private:
  struct Held {
    ReplyToken token;
    size_t begin;  // bytes of the text in front of it
  };
  struct Part {
    size_t content_begin;
    size_t begin;
    size_t n_bytes;
  };

  // Where a part of the text begins that is still unknown, which it and all in front of it no
  // longer is.
  size_t find(std::string_view part);

  std::deque<Held> held_;
  std::deque<Part> parts_;  // of what the model says, as far as it may be cut off
  std::string unknown_;     // the end of the text
  size_t n_text_ = 0;
  size_t n_content_ = 0;
};

// Makes text of the tokens of one choice. Called on the scheduler's thread.
// Thread-compatible.
class ReplySink final : public ChoiceSink {
 public:
  // Requires: the tokenizer outlives this.
  ReplySink(const text::Tokenizer& tokenizer, std::shared_ptr<ReplyChannel> channel,
            ReplyOptions options);

  void on_prompt(std::span<const GeneratedToken> tokens) override;
  bool on_token(const GeneratedToken& token) override;
  void on_end(const ChoiceResult& result) override;

 private:
  // What a token makes certain.
  text::ReplyParts push(const GeneratedToken& token);
  // What `parts` bring to the client.
  ReplyEvent event_of(text::ReplyParts parts);
  ReplyToken reply_token(const GeneratedToken& token, size_t offset) const;
  bool has_enough() const { return scanner_.found() || (options_.one_call && has_called_); }

  const text::Tokenizer& tokenizer_;
  std::shared_ptr<ReplyChannel> channel_;
  ReplyOptions options_;
  StopScanner scanner_;
  std::optional<text::ReplyParser> parser_;  // of a chat
  // Of a completion its text; of a chat with stop strings whose tokens are kept all that they say,
  // signs too.
  std::optional<TokenPlaces> places_;
  HeldTokens held_;
  std::vector<ReplyToken> next_tokens_;  // for the next event
  bool has_echoed_ = false;
  bool has_called_ = false;
};

// Code points of valid UTF-8.
size_t n_characters(std::string_view text);
// Text with bytes that are no UTF-8 replaced.
std::string valid_text(std::string_view bytes);
// The bytes that a token stands for; nothing for ids without a text.
std::string token_bytes(const text::Tokenizer& tokenizer, int32_t id);

}  // namespace hotset::server

#endif  // HOTSET_SERVER_REPLY_H_
