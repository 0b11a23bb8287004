// Takes a reply apart while it is written: what the model says, what it thinks, and the tools it
// calls. Fed with pieces of any size; how the text was cut makes no difference to the sum of what
// comes out, and no part of a sign is ever given as text: what could still become one waits.
//
// A tool call comes out once it is whole. What stands between the signs of a call but is none
// (broken JSON, cut off by a limit) comes out as what the model says, so nothing is lost. White
// space around what is thought, and between it, calls and what is said, belongs to none of them.
// Thread-compatible.
#ifndef HOTSET_TEXT_REPLY_SPLITTER_H_
#define HOTSET_TEXT_REPLY_SPLITTER_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hotset/text/reply_format.h"
#include "hotset/text/tool_calls.h"

namespace hotset::text {

// What one more piece of a reply has made certain; of a whole reply, all of it.
struct ReplyParts {
  std::string content = {};
  std::string reasoning = {};
  std::vector<ToolCall> tool_calls = {};

  // Adds what came next.
  void append(const ReplyParts& more) {
    content += more.content;
    reasoning += more.reasoning;
    tool_calls.insert(tool_calls.end(), more.tool_calls.begin(), more.tool_calls.end());
  }
  bool empty() const { return content.empty() && reasoning.empty() && tool_calls.empty(); }
  bool operator==(const ReplyParts&) const = default;
};

class ReplySplitter {
 public:
  explicit ReplySplitter(ReplyFormat format);
  ReplySplitter(ReplySplitter&&) noexcept;
  ReplySplitter& operator=(ReplySplitter&&) noexcept;
  ~ReplySplitter();

  // The next text of the reply, valid UTF-8 if the parts are to be.
  ReplyParts push(std::string_view text);
  // The next token is one of format.token_signs.
  ReplyParts push_sign(std::string_view sign);
  // The end of the reply. Nothing is pushed behind it.
  ReplyParts finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The parts of a whole reply.
ReplyParts split_reply(std::string_view text, const ReplyFormat& format);

}  // namespace hotset::text

#endif  // HOTSET_TEXT_REPLY_SPLITTER_H_
