#include "hotset/text/reply_splitter.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "hotset/text/white_space.h"

namespace hotset::text {
namespace {

constexpr std::string_view kToolNamespace = "functions.";
constexpr std::string_view kTo = "to=";  // the recipient of a part, in its header

enum class SignKind {
  kReasoningBegin,
  kReasoningEnd,
  kCallBegin,
  kCallEnd,
  kInner,
  kAround,
  kChannel
};

struct Sign {
  std::string text;
  SignKind kind;
  bool is_token = false;  // does not count as letters
};

// Finds the end of a JSON object, letter by letter.
class JsonScanner {
 public:
  // Whether `c` ends the value.
  bool push(char c) {
    if (in_string_) {
      if (is_escaped_) {
        is_escaped_ = false;
      } else if (c == '\\') {
        is_escaped_ = true;
      } else if (c == '"') {
        in_string_ = false;
      }
      return false;
    }
    if (c == '"') in_string_ = true;
    if (c == '{' || c == '[') ++depth_;
    return (c == '}' || c == ']') && --depth_ <= 0;
  }

 private:
  int64_t depth_ = 0;
  bool in_string_ = false;
  bool is_escaped_ = false;
};

// What stands in front of the text of a part, "assistant to=NAME<|channel|>NAME<|constrain|>json":
// the recipient may stand on either side of the channel.
struct PartHeader {
  std::string_view channel;
  std::string_view recipient;

  static std::string_view word(std::string_view text) {
    return text.substr(0, std::min(text.find_first_of(" \t\r\n<"), text.size()));
  }

  explicit PartHeader(std::string_view header) {
    constexpr std::string_view kChannel = "<|channel|>";
    if (const size_t at = header.rfind(kChannel); at != std::string_view::npos) {
      std::string_view behind = header.substr(at + kChannel.size());
      behind.remove_prefix(std::min(behind.find_first_not_of(kWhiteSpace), behind.size()));
      channel = word(behind);
    }
    if (const size_t at = header.find(kTo); at != std::string_view::npos) {
      recipient = word(header.substr(at + kTo.size()));
    }
  }
};

// A text for a tool that is no call, with what would be lost otherwise.
std::string addressed(std::string_view recipient, std::string_view text) {
  return std::string(kTo).append(recipient).append(" ").append(text);
}

enum class Mode {
  kLead,  // in front of a part, whose kind is not known yet
  kContent,
  kReasoning,
  kCall,      // between the signs of a call
  kJson,      // in a call without signs
  kHeader,    // of a part with a channel
  kPartCall,  // a call that is such a part
};

}  // namespace

struct ReplySplitter::State {
  explicit State(ReplyFormat format_given);

  void push(std::string_view text, bool is_end);
  void handle(const Sign& sign);
  void end();
  const Sign* active_sign(std::string_view text) const;
  ReplyParts take() { return std::exchange(out, {}); }

  bool is_active(const Sign& sign) const;
  bool may_become_sign(std::string_view rest) const;
  size_t take_text(std::string_view text);
  size_t take_lead(std::string_view text);
  void write(std::string& to, bool& has_some, std::string_view text);
  void write_part(std::string_view text);
  void begin_part(Mode next);
  void end_call();
  void end_part_call();
  void say(std::string_view text);
  void handle_channel_sign(std::string_view sign);

  ReplyFormat format;
  std::vector<Sign> signs;
  bool calls_have_ends = false;
  ReplyParts out;
  Mode mode = Mode::kLead;
  std::string pending;      // not looked at yet, or perhaps a sign
  std::string space;        // white space that belongs to the part if more of it follows
  bool keeps_lead = true;   // white space in front of the next part belongs to it
  bool is_new_part = true;  // nothing was written of the part
  bool has_content = false;
  bool has_reasoning = false;
  std::string body;    // of a call
  std::string header;  // of a part
  std::string called;  // recipient of a kPartCall
  JsonScanner scanner;
};

ReplySplitter::State::State(ReplyFormat format_given) : format(std::move(format_given)) {
  const auto add = [&](std::string_view text, SignKind kind) {
    if (text.empty()) return;
    signs.push_back({.text = std::string(text),
                     .kind = kind,
                     .is_token = std::ranges::contains(format.token_signs, text)});
  };
  if (format.has_channels) {
    for (const std::string_view sign : channel_signs()) add(sign, SignKind::kChannel);
    mode = Mode::kHeader;
    return;
  }
  if (format.splits_reasoning) {
    add(format.reasoning_begin, SignKind::kReasoningBegin);
    add(format.reasoning_end, SignKind::kReasoningEnd);
  }
  const ToolSigns tools = tool_signs(format.tools);
  calls_have_ends = !tools.end.empty();
  add(tools.begin, SignKind::kCallBegin);
  add(tools.end, SignKind::kCallEnd);
  for (const std::string_view sign : tools.inner) add(sign, SignKind::kInner);
  for (const std::string_view sign : tools.around) add(sign, SignKind::kAround);
  if (format.begins_in_reasoning && format.splits_reasoning) begin_part(Mode::kReasoning);
}

bool ReplySplitter::State::is_active(const Sign& sign) const {
  switch (sign.kind) {
    case SignKind::kReasoningBegin:
      return mode == Mode::kLead;
    case SignKind::kReasoningEnd:
      return mode == Mode::kReasoning;
    case SignKind::kCallBegin:
      return mode == Mode::kLead || mode == Mode::kContent ||
             (mode == Mode::kCall && !calls_have_ends);
    case SignKind::kCallEnd:
      return mode == Mode::kCall;
    case SignKind::kInner:
      return false;  // stays in the body, to be found by parse_tool_calls()
    case SignKind::kAround:
      return mode == Mode::kLead || mode == Mode::kContent;
    case SignKind::kChannel:
      return true;
  }
  return false;
}

const Sign* ReplySplitter::State::active_sign(std::string_view text) const {
  for (const Sign& sign : signs) {
    if (!sign.is_token && is_active(sign) && text.starts_with(sign.text)) return &sign;
  }
  return nullptr;
}

bool ReplySplitter::State::may_become_sign(std::string_view rest) const {
  return std::ranges::any_of(signs, [&](const Sign& sign) {
    return !sign.is_token && is_active(sign) && std::string_view(sign.text).starts_with(rest);
  });
}

void ReplySplitter::State::push(std::string_view text, bool is_end) {
  pending += text;
  const std::string_view all = pending;
  size_t done = 0;  // of `all`
  while (done < all.size()) {
    // The first place that is a sign, or that more text could make one.
    size_t at = done;
    const Sign* sign = nullptr;
    for (; at < all.size(); ++at) {
      sign = active_sign(all.substr(at));
      if (sign != nullptr || (!is_end && may_become_sign(all.substr(at)))) break;
    }
    const size_t n_taken = take_text(all.substr(done, at - done));
    done += n_taken;
    if (done < at) continue;  // in another mode other signs count
    if (sign == nullptr) break;
    done += sign->text.size();
    handle(*sign);
  }
  pending.erase(0, done);
}

// Takes the beginning of a text without signs, up to where the mode changes.
size_t ReplySplitter::State::take_text(std::string_view text) {
  switch (mode) {
    case Mode::kLead:
      return take_lead(text);
    case Mode::kContent:
    case Mode::kReasoning:
      write_part(text);
      break;
    case Mode::kCall:
    case Mode::kPartCall:
      body += text;
      break;
    case Mode::kHeader:
      header += text;
      break;
    case Mode::kJson:
      for (size_t i = 0; i < text.size(); ++i) {
        body += text[i];
        if (!scanner.push(text[i])) continue;
        end_call();
        return i + 1;
      }
      break;
  }
  return text.size();
}

size_t ReplySplitter::State::take_lead(std::string_view text) {
  const size_t n_space = std::min(text.find_first_not_of(kWhiteSpace), text.size());
  space += text.substr(0, n_space);
  if (n_space == text.size()) return n_space;
  const bool is_llama = format.tools == ToolSyntax::kLlama3;
  // Several calls may have a semicolon between them.
  if (is_llama && text[n_space] == ';' && !keeps_lead) return n_space + 1;
  const std::string lead = keeps_lead ? space : std::string();
  if (is_llama && text[n_space] == '{') {
    begin_part(Mode::kJson);
    scanner = {};
  } else {
    begin_part(Mode::kContent);
  }
  space = lead;
  return n_space;
}

void ReplySplitter::State::begin_part(Mode next) {
  mode = next;
  space.clear();
  body.clear();
  is_new_part = true;
  if (next != Mode::kContent && next != Mode::kJson) keeps_lead = false;
}

void ReplySplitter::State::write(std::string& to, bool& has_some, std::string_view text) {
  const size_t end = text.find_last_not_of(kWhiteSpace) + 1;  // 0 if there is nothing else
  if (end == 0) {
    space += text;
    return;
  }
  if (is_new_part) {
    // Another part of the same kind stands behind an empty line.
    if (has_some) to += "\n\n";
    if (!keeps_lead) {
      space.clear();
      text.remove_prefix(text.find_first_not_of(kWhiteSpace));
    }
  }
  to += std::exchange(space, {});
  const size_t n = text.find_last_not_of(kWhiteSpace) + 1;
  to += text.substr(0, n);
  space = text.substr(n);
  is_new_part = false;
  has_some = true;
}

void ReplySplitter::State::write_part(std::string_view text) {
  const bool is_content = mode == Mode::kContent;
  write(is_content ? out.content : out.reasoning, is_content ? has_content : has_reasoning, text);
}

// Something that turned out to be no call.
void ReplySplitter::State::say(std::string_view text) { write(out.content, has_content, text); }

void ReplySplitter::State::end_call() {
  const std::string text = std::exchange(body, {});
  auto calls = parse_tool_calls(text, format);
  if (calls) {
    out.tool_calls.insert(out.tool_calls.end(), calls->begin(), calls->end());
    keeps_lead = false;
    begin_part(Mode::kLead);
    return;
  }
  say(text);
  const bool goes_on = mode == Mode::kJson;  // it was what the model says, and more may follow
  if (goes_on) {
    mode = Mode::kContent;
  } else {
    begin_part(Mode::kLead);
  }
}

void ReplySplitter::State::end_part_call() {
  const std::string text = std::exchange(body, {});
  std::string_view name = called;
  if (name.starts_with(kToolNamespace)) name.remove_prefix(kToolNamespace.size());
  auto call = make_tool_call(name, text);
  if (call) {
    out.tool_calls.push_back(*std::move(call));
  } else {
    say(addressed(called, text));
  }
}

void ReplySplitter::State::handle_channel_sign(std::string_view sign) {
  if (mode == Mode::kHeader) {
    if (sign == "<|start|>") header.clear();
    if (sign == "<|channel|>" || sign == "<|constrain|>") header += sign;
    if (sign != "<|message|>") return;
    const PartHeader part(header);
    const bool is_call = !part.recipient.empty();
    if (is_call && format.tools == ToolSyntax::kHarmony) {
      called = part.recipient;
      begin_part(Mode::kPartCall);
    } else {
      const bool is_thought = format.splits_reasoning && part.channel == "analysis";
      begin_part(is_thought ? Mode::kReasoning : Mode::kContent);
      // Nobody offered tools, so it is a text like any other, and to whom it is belongs to it.
      if (is_call) write_part(addressed(part.recipient, ""));
    }
    header.clear();
    return;
  }
  if (sign == "<|constrain|>") return;
  if (mode == Mode::kPartCall) end_part_call();
  header.clear();
  if (sign == "<|channel|>") header = sign;
  keeps_lead = false;
  begin_part(Mode::kHeader);
  // A text without a header goes on where another sign of a text would have been due.
  if (sign == "<|message|>") handle_channel_sign(sign);
}

void ReplySplitter::State::handle(const Sign& sign) {
  switch (sign.kind) {
    case SignKind::kReasoningBegin:
      begin_part(Mode::kReasoning);
      break;
    case SignKind::kReasoningEnd:
    case SignKind::kAround:
      keeps_lead = false;
      begin_part(Mode::kLead);
      break;
    case SignKind::kCallBegin:
      if (mode == Mode::kCall) end_call();
      begin_part(Mode::kCall);
      break;
    case SignKind::kCallEnd:
      end_call();
      break;
    case SignKind::kInner:
      break;
    case SignKind::kChannel:
      handle_channel_sign(sign.text);
      break;
  }
}

void ReplySplitter::State::end() {
  push("", true);
  switch (mode) {
    case Mode::kLead:
    case Mode::kContent:
      if (keeps_lead || !is_new_part) out.content += std::exchange(space, {});
      break;
    case Mode::kCall:
    case Mode::kJson:
      end_call();
      break;
    case Mode::kPartCall:
      end_part_call();
      break;
    case Mode::kReasoning:
    case Mode::kHeader:
      break;
  }
  if (mode == Mode::kContent && !is_new_part) out.content += std::exchange(space, {});
}

ReplySplitter::ReplySplitter(ReplyFormat format)
    : state_(std::make_unique<State>(std::move(format))) {}
ReplySplitter::ReplySplitter(ReplySplitter&&) noexcept = default;
ReplySplitter& ReplySplitter::operator=(ReplySplitter&&) noexcept = default;
ReplySplitter::~ReplySplitter() = default;

ReplyParts ReplySplitter::push(std::string_view text) {
  state_->push(text, false);
  return state_->take();
}

ReplyParts ReplySplitter::push_sign(std::string_view sign) {
  state_->push("", true);  // no sign goes on across a token
  for (const Sign& known : state_->signs) {
    if (known.text != sign) continue;
    if (known.kind == SignKind::kInner && state_->mode == Mode::kCall) state_->body += sign;
    if (state_->is_active(known)) state_->handle(known);
    break;
  }
  return state_->take();
}

ReplyParts ReplySplitter::finish() {
  state_->end();
  return state_->take();
}

ReplyParts split_reply(std::string_view text, const ReplyFormat& format) {
  ReplySplitter splitter(format);
  ReplyParts parts = splitter.push(text);
  parts.append(splitter.finish());
  return parts;
}

}  // namespace hotset::text
