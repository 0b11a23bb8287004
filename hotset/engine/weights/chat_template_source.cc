#include "hotset/engine/weights/chat_template_source.h"

#include <fmt/ranges.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "hotset/base/allocation.h"
#include "hotset/base/log.h"
#include "hotset/text/builtin_chat_templates.h"

namespace hotset::engine {
namespace {

constexpr std::string_view kKey = "tokenizer.chat_template";
constexpr size_t kMaxFileBytes = 1 << 20;

struct Source {
  std::string name;
  std::string text;
};

Source builtin(std::string_view name) {
  return {fmt::format("chat template '{}'", name),
          std::string(text::builtin_chat_template(name).value())};
}

Result<Source> read_file(const std::string& path) {
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  const std::unique_ptr<std::FILE, Close> file(std::fopen(path.c_str(), "rb"));
  if (!file) {
    return make_error(ErrorCode::kIo, "{}: cannot open: {}", path, std::strerror(errno));
  }
  Source source = {.name = path, .text = {}};
  std::array<char, 1 << 14> buffer;
  size_t n = 0;
  while (source.text.size() <= kMaxFileBytes &&
         (n = std::fread(buffer.data(), 1, buffer.size(), file.get())) > 0) {
    source.text.append(buffer.data(), n);
  }
  if (std::ferror(file.get()) != 0) {
    return make_error(ErrorCode::kIo, "{}: cannot read: {}", path, std::strerror(errno));
  }
  if (source.text.size() > kMaxFileBytes) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: found more than 1 MiB, expected a chat template", path);
  }
  return source;
}

Result<Source> choose_automatically(const model::GgufFile& file, const text::Tokenizer& tokenizer) {
  HOTSET_TRY(std::optional<std::string> own, file.find_string(kKey));
  if (own) return Source{fmt::format("{}: {}", file.name(), kKey), *std::move(own)};
  HOTSET_TRY(const std::optional<std::string> architecture,
             file.find_string("general.architecture"));
  const auto name = text::choose_builtin_chat_template(tokenizer, architecture.value_or(""));
  if (name) {
    log_info("{}: has no chat template; '{}' fits its vocabulary", file.name(), *name);
    return builtin(*name);
  }
  log_warning(
      "{}: has no chat template, and its vocabulary no sign of a known one; 'chatml' is used, "
      "which "
      "the model may not know. --chat-template chooses another.",
      file.name());
  return builtin("chatml");
}

Result<Source> choose(const model::GgufFile& file, const text::Tokenizer& tokenizer,
                      const std::string& choice) {
  if (choice.empty() || choice == kAutoChatTemplate) return choose_automatically(file, tokenizer);
  if (text::builtin_chat_template(choice)) return builtin(choice);
  const std::string key = fmt::format("{}.{}", kKey, choice);
  HOTSET_TRY(std::optional<std::string> named, file.find_string(key));
  if (named) return Source{fmt::format("{}: {}", file.name(), key), *std::move(named)};
  std::error_code ignored;
  if (std::filesystem::exists(choice, ignored)) return read_file(choice);
  return make_error(ErrorCode::kNotFound,
                    "--chat-template: found '{}', expected auto, one of {}, a name from the model "
                    "(key '{}.NAME') or a file",
                    choice, fmt::join(text::builtin_chat_templates(), ", "), kKey);
}

}  // namespace

Result<text::ChatTemplate> load_chat_template(const model::GgufFile& file,
                                              const text::Tokenizer& tokenizer,
                                              const std::string& choice) {
  return catching_refusal("the chat template", [&]() -> Result<text::ChatTemplate> {
    HOTSET_TRY(Source source, choose(file, tokenizer, choice));
    text::ChatTemplateOptions options = text::chat_template_options(tokenizer);
    options.name = std::move(source.name);
    return text::ChatTemplate::create(std::move(source.text), std::move(options));
  });
}

}  // namespace hotset::engine
