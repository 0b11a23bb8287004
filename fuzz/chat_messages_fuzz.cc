// The built-in chat templates over messages, tools and variables of any form. Whatever they are,
// rendering ends with a text or an error that blames them, no message writes a special token, and
// the sandbox holds no more than before.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "hotset/text/builtin_chat_templates.h"
#include "hotset/text/chat_template.h"

namespace {

using hotset::ErrorCode;
using hotset::text::ChatTemplate;

constexpr std::string_view kSecret = "<|secret|>";  // that no template writes

void require(bool condition, const char* what, std::string_view detail) {
  if (condition) return;
  std::fprintf(stderr, "chat_messages_fuzz: %s: %.*s\n", what, static_cast<int>(detail.size()),
               detail.data());
  std::abort();
}

struct Built {
  ChatTemplate chat;
  hotset::Bytes memory;  // before the first rendering
};

const std::vector<Built>& templates() {
  static const std::vector<Built> all = [] {
    std::vector<Built> made;
    for (const std::string_view name : hotset::text::builtin_chat_templates()) {
      auto chat = *ChatTemplate::create(std::string(*hotset::text::builtin_chat_template(name)),
                                        {.bos_token = "<s>",
                                         .eos_token = "</s>",
                                         .special_tokens = {std::string(kSecret), "<s>"},
                                         .limits = {.memory = hotset::mib(32)}});
      const hotset::Bytes memory = chat.used_memory();
      made.push_back({std::move(chat), memory});
    }
    return made;
  }();
  return all;
}

// The text up to the next zero byte, which is cut off from `rest` with it.
std::string cut(std::string_view& rest) {
  const size_t end = std::min(rest.find('\0'), rest.size());
  const std::string_view part = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return std::string(part);
}

}  // namespace

// A byte that chooses the template; messages, tools and variables with zero bytes between them.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n_bytes) {
  if (n_bytes == 0) return 0;
  const Built& built = templates()[data[0] % templates().size()];
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, n_bytes - 1);
  hotset::text::ChatInput input;
  input.messages = cut(rest);
  input.tools = cut(rest);
  input.variables = cut(rest);
  const auto rendered = built.chat.render(input);
  if (rendered) {
    require(!rendered->contains(kSecret), "a message has written a special token", *rendered);
  } else {
    require(rendered.error().code == ErrorCode::kInvalidArgument, "an error that blames no message",
            rendered.error().message);
  }
  require(built.chat.used_memory() <= built.memory + hotset::mib(2), "the sandbox keeps memory",
          hotset::to_string(built.chat.used_memory()));
  return 0;
}
