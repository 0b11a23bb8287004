// Chat templates: a model's own Jinja text turns messages into the text that the model was trained
// to go on from. It is rendered by @huggingface/jinja in a sandbox (script_runtime.h); templates
// come with models, from anywhere, so they get bounded memory and time, and reach nothing.
// Thread-safe: any number of threads may render; a few at once (script_pool.h), the others wait.
#ifndef HOTSET_TEXT_CHAT_TEMPLATE_H_
#define HOTSET_TEXT_CHAT_TEMPLATE_H_

#include <cstdint>
#include <ctime>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/base/json.h"
#include "hotset/text/script_runtime.h"
#include "hotset/text/tokenizer.h"

namespace hotset::text {

struct ChatTemplateOptions {
  std::string name = "chat template";  // for messages
  std::string bos_token = {};          // variables of these names
  std::string eos_token = {};
  // Names of tokens that messages must not be able to write (text_marks.h).
  std::vector<std::string> special_tokens = {};
  ScriptLimits limits = {};  // of one rendering
};

// Fills in what a vocabulary says: BOS, EOS, and as special tokens its control tokens, those that
// end a generation, and user-defined ones that look like signs between model and runtime
// ("<|...|>").
ChatTemplateOptions chat_template_options(const Tokenizer& tokenizer);

// How deep the JSON of a ChatInput may be nested: a request of base/json.h's depth that has such
// texts of JSON within, made objects. What is nested less than that is rendered, and not too deep
// for the sandbox, whatever the template does with it.
inline constexpr int kMaxChatJsonDepth = 2 * kMaxJsonDepth + 8;

// What a template gets, as JSON. Strings in it count as written by anyone; they get marks.
struct ChatInput {
  // Array of objects: role, content, tool_calls, ... Arguments of tool calls may be objects or JSON
  // text: the template gets objects, and text if it fails on those.
  std::string messages = "[]";
  std::string tools = {};      // array; empty: none
  std::string documents = {};  // array; empty: none
  std::string variables = {};  // object: further variables (enable_thinking, ...); empty: none
  bool add_generation_prompt = true;
  std::tm now = {};  // local time, for strftime_now()
};

class ChatTemplate {
 public:
  // Reads `source`, bytes of Jinja text.
  // Errors: kCorrupt: wrong syntax; kOutOfMemory, kCancelled, kUnsupported (nested too deeply): it
  // needs more than `options.limits`. The message has the name and, where known, the line.
  static Result<ChatTemplate> create(std::string source, ChatTemplateOptions options);
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // Takes another source into the same sandbox, which costs far less than create(): for those that
  // try many. Requires: nobody renders meanwhile. Errors: as create(); the source before stays.
  Status replace_source(std::string source);

  // The prompt, with text marks in it: encode_chat() makes tokens of it, without_marks() text.
  // Errors: kInvalidArgument: JSON of `input` that is none or of the wrong form, or the template
  // refuses the messages (raise_exception) or fails on them; kOutOfMemory, kCancelled,
  // kUnsupported: as create().
  Result<std::string> render(const ChatInput& input) const;

  // What the sandbox holds now, over all renderings.
  Bytes used_memory() const;

  const std::string& name() const;
  const std::string& source() const;
  // Whether the text of the template has `word` in it: what it may know of, "tools" for instance.
  bool mentions(std::string_view word) const { return source().contains(word); }

 private:
  struct State;
  Result<std::string> render_with(const nlohmann::ordered_json& given,
                                  const ChatInput& input) const;
  explicit ChatTemplate(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

// The ids of what a template has rendered. Special tokens that the template wrote are these tokens,
// those in messages are text. BOS is in front once, if texts of this model begin with it, whether
// the template writes it or not. Errors: as Tokenizer::encode().
Result<std::vector<int32_t>> encode_chat(const Tokenizer& tokenizer, std::string_view rendered);

// The fewest tokens that `messages` (JSON as in ChatInput) can become, so that a chat that is far
// too long is refused before it costs anything. Counts what every template writes: texts that are
// not the assistant's, of which templates drop what it thought, without the white space around
// them. 0 where `messages` are no messages.
size_t least_chat_tokens(const Tokenizer& tokenizer, std::string_view messages);

}  // namespace hotset::text

#endif  // HOTSET_TEXT_CHAT_TEMPLATE_H_
