// Chat templates for models whose file has none, and the choice among them by what the vocabulary
// has tokens for. Their text is in hotset/text/chat_templates.
// Thread-safe: constants and pure functions.
#ifndef HOTSET_TEXT_BUILTIN_CHAT_TEMPLATES_H_
#define HOTSET_TEXT_BUILTIN_CHAT_TEMPLATES_H_

#include <optional>
#include <string_view>
#include <vector>

#include "hotset/text/tokenizer.h"

namespace hotset::text {

// Names, sorted: chatml, deepseek, glm, gpt-oss, granite, llama3, mistral.
std::vector<std::string_view> builtin_chat_templates();

// The Jinja text of one; nothing if there is none of this name. Lives as long as the process.
std::optional<std::string_view> builtin_chat_template(std::string_view name);

// The name of the one whose signs the vocabulary has; nothing if there is none. `architecture` is
// that of the file: SentencePiece vocabularies of Mistral's models have no token of their own for
// their signs.
std::optional<std::string_view> choose_builtin_chat_template(const Tokenizer& tokenizer,
                                                             std::string_view architecture);

}  // namespace hotset::text

#endif  // HOTSET_TEXT_BUILTIN_CHAT_TEMPLATES_H_
