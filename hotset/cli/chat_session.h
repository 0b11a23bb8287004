// A conversation with a model: messages, what of their prompt the KV memory holds, and the replies.
// Thread-compatible.
#ifndef HOTSET_CLI_CHAT_SESSION_H_
#define HOTSET_CLI_CHAT_SESSION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/engine/run/engine.h"
#include "hotset/engine/run/sampler.h"
#include "hotset/measure/engine_session.h"
#include "hotset/measure/model_options.h"
#include "hotset/text/chat_template.h"
#include "hotset/text/reply_format.h"
#include "hotset/text/tokenizer.h"

namespace hotset::cli {

struct ChatSessionOptions {
  std::string system = {};     // text of the system message; empty: none
  std::string variables = {};  // JSON object, as text::ChatInput::variables
  int32_t n_predict = -1;      // tokens of a reply; -1: until the model ends it
  bool ignore_eos = false;
};

// What one reply did.
struct ChatReply {
  std::string text;             // what the model says
  std::string thinking;         // where it can be told apart
  std::vector<int32_t> tokens;  // generated
  std::string_view stop;        // end, length, context, interrupted
  size_t n_prompt = 0;          // tokens of the whole conversation up to the reply
  size_t n_reused = 0;          // of these, found in the KV memory
  double prompt_us = 0;
  double generate_us = 0;
};

class ChatSession {
 public:
  using Show = std::function<Status(std::string_view text)>;

  // Requires: session and tokenizer outlive this; nobody else uses sequence 0 of the engine.
  ChatSession(measure::EngineSession& session, const text::Tokenizer& tokenizer,
              text::ChatTemplate chat_template, engine::Sampler sampler,
              ChatSessionOptions options);
  ~ChatSession();

  // Answers `message`. The text is given to `show` as it comes; at Ctrl-C the reply ends and counts
  // as far as it came. Only the part of the prompt behind what it has in common with the KV memory
  // is computed.
  // After an error the message counts as never said. The same for a reply that was interrupted
  // before its first token.
  // Errors: kOutOfMemory: the conversation is longer than the context; those of the template, of
  // EngineSession::decode() and of `show`.
  Result<ChatReply> reply(std::string message, const Show& show);

  // Forgets all messages but the system message.
  void clear();

  size_t n_messages() const;

 private:
  struct Messages;

  // A prompt, and how a reply to it is written.
  struct Prompt {
    std::vector<int32_t> ids;
    text::ReplyFormat format;
  };

  Result<Prompt> prompt() const;
  // The logits behind `ids`; the tokens that the KV memory has already are not computed.
  Result<std::span<const float>> compute_prompt(const std::vector<int32_t>& ids, ChatReply& reply);
  Status generate(std::span<const float> logits, text::ReplyFormat format, const Show& show,
                  ChatReply& reply);

  measure::EngineSession* session_;
  engine::Engine* engine_;
  const text::Tokenizer* tokenizer_;
  text::ChatTemplate template_;
  engine::Sampler sampler_;
  ChatSessionOptions options_;
  std::unique_ptr<Messages> messages_;
  std::vector<int32_t> cached_;  // tokens in the KV memory, by position
};

}  // namespace hotset::cli

#endif  // HOTSET_CLI_CHAT_SESSION_H_
