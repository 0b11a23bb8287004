// Which chat template a model gets: its file's own, one that hotset brings, or one from a file.
// Thread-safe.
#ifndef HOTSET_ENGINE_WEIGHTS_CHAT_TEMPLATE_SOURCE_H_
#define HOTSET_ENGINE_WEIGHTS_CHAT_TEMPLATE_SOURCE_H_

#include <string>
#include <string_view>

#include "hotset/base/error.h"
#include "hotset/model/gguf_file.h"
#include "hotset/text/chat_template.h"
#include "hotset/text/tokenizer.h"

namespace hotset::engine {

inline constexpr std::string_view kAutoChatTemplate = "auto";

// The template that `choice` means:
// - "auto" or empty: the file's own (key `tokenizer.chat_template`); of a file without one the
//   built-in one whose signs its vocabulary has, else chatml, with a warning;
// - the name of a built-in one (text::builtin_chat_templates());
// - the name of another one in the file (key `tokenizer.chat_template.NAME`);
// - the path of a file with Jinja text, at most 1 MiB.
// Errors: kNotFound: none of these; kIo, kInvalidArgument: a file that cannot be read or is too
// long; those of text::ChatTemplate::create().
Result<text::ChatTemplate> load_chat_template(const model::GgufFile& file,
                                              const text::Tokenizer& tokenizer,
                                              const std::string& choice);

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_WEIGHTS_CHAT_TEMPLATE_SOURCE_H_
