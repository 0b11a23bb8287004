#include "hotset/text/builtin_chat_templates.h"

#include <algorithm>

#include "hotset/text/embedded_files.h"

namespace hotset::text {
namespace {

struct TemplateSign {
  std::string_view token;
  std::string_view name;
};

// The first that the vocabulary has decides.
constexpr TemplateSign kTemplateSigns[] = {
    {"<|start_of_role|>", "granite"},
    {"<|channel|>", "gpt-oss"},
    {"[gMASK]", "glm"},
    {"<｜User｜>", "deepseek"},
    {"<|start_header_id|>", "llama3"},
    {"<|im_start|>", "chatml"},
    {"[INST]", "mistral"},
};

}  // namespace

std::vector<std::string_view> builtin_chat_templates() {
  std::vector<std::string_view> names;
  for (const EmbeddedFile& file : chat_template_files()) names.push_back(file.name);
  std::ranges::sort(names);
  return names;
}

std::optional<std::string_view> builtin_chat_template(std::string_view name) {
  for (const EmbeddedFile& file : chat_template_files()) {
    if (file.name == name) return file.content;
  }
  return std::nullopt;
}

std::optional<std::string_view> choose_builtin_chat_template(const Tokenizer& tokenizer,
                                                             std::string_view architecture) {
  for (const TemplateSign& sign : kTemplateSigns) {
    if (tokenizer.find_token(sign.token)) return sign.name;
  }
  const bool has_sentencepiece_signs = tokenizer.find_token("<s>") && tokenizer.find_token("</s>");
  if (architecture == "llama" && has_sentencepiece_signs) return "mistral";
  return std::nullopt;
}

}  // namespace hotset::text
