// Chat templates made of the input, over messages made of the input. Whatever it is, rendering ends
// with a text or an error that blames the template or the messages, and the sandbox renders the
// next one, with no more memory than before. (chat_messages_fuzz: that messages write no special
// token.)
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "hotset/text/chat_template.h"

namespace {

using hotset::ErrorCode;
using hotset::text::ChatTemplate;
using hotset::text::ChatTemplateOptions;
using nlohmann::json;

constexpr std::string_view kEnd = "<|im_end|>";

void require(bool condition, const char* what, std::string_view detail) {
  if (condition) return;
  std::fprintf(stderr, "chat_template_fuzz: %s: %.*s\n", what, static_cast<int>(detail.size()),
               detail.data());
  std::abort();
}

ChatTemplateOptions options() {
  return {.bos_token = "<s>",
          .eos_token = std::string(kEnd),
          .special_tokens = {std::string(kEnd), "<s>", "<|im_start|>"},
          .limits = {.memory = hotset::mib(16), .time_us = 0.5e6}};
}

std::string messages(std::string_view content) {
  const std::string text(content);
  return json({{{"role", "system"}, {"content", text.substr(0, text.size() / 2)}},
               {{"role", "user"}, {"content", text}},
               {{"role", "assistant"}, {"content", {{{"type", "text"}, {"text", text}}}}},
               {{"role", text}, {"content", 1.5}, {text, {text, nullptr, true}}}})
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

void check_error(const hotset::Error& error) {
  require(error.code != ErrorCode::kInternal, "a failure that is nobody's fault", error.message);
  require(!error.message.empty(), "an error without a message", "");
}

// One sandbox for all inputs, as a server has one for all chats: to make one takes most of the
// time.
void render_anything(std::string_view source, std::string_view content) {
  static ChatTemplate made = *ChatTemplate::create("", options());
  static const hotset::Bytes memory = made.used_memory();
  const auto taken = made.replace_source(std::string(source));
  const auto rendered = taken ? made.render({.messages = messages(content)})
                              : hotset::Result<std::string>(std::unexpected(taken.error()));
  if (!rendered) check_error(rendered.error());
  const auto emptied = made.replace_source("");
  require(emptied.has_value(), "no template can be read any more",
          emptied ? "" : emptied.error().message);
  require(made.render({}) == "", "a template leaves text behind", source);
  require(made.used_memory() <= memory + hotset::mib(2), "the sandbox keeps memory",
          hotset::to_string(made.used_memory()));
}

}  // namespace

// What the sandbox holds differs from input to input, after each of which libFuzzer would look for
// leaks, for most of the time. The corpus is run without libFuzzer and looks for them once.
extern "C" int LLVMFuzzerInitialize(int* n_arguments, char*** arguments) {
  static char flag[] = "-detect_leaks=0";
  static std::vector<char*> all(*arguments, *arguments + *n_arguments);
  all.insert(all.begin() + 1, flag);  // those of the caller are read later
  *n_arguments = static_cast<int>(all.size());
  all.push_back(nullptr);
  *arguments = all.data();
  return 0;
}

// A template, a zero byte, and the text of messages.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n_bytes) {
  const std::string_view input(reinterpret_cast<const char*>(data), n_bytes);
  const size_t end = std::min(input.find('\0'), input.size());
  const std::string_view content = input.substr(std::min(end + 1, input.size()));
  render_anything(input.substr(0, end), content);
  return 0;
}
