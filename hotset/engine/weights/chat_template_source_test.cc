#include "hotset/engine/weights/chat_template_source.h"

#include <gguf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hotset/base/log.h"
#include "hotset/base/temporary_folder.h"
#include "hotset/engine/weights/model_tokenizer.h"

namespace hotset::engine {
namespace {

using testing::HasSubstr;

// A file with a vocabulary of all bytes' letters that matter here and one sign.
struct ChatFile {
  explicit ChatFile(const char* sign, const std::vector<std::pair<std::string, std::string>>& keys)
      : bytes(write(sign, keys)), file(*model::GgufFile::parse(bytes, "chat.gguf")) {}

  static std::vector<uint8_t> write(const char* sign,
                                    const std::vector<std::pair<std::string, std::string>>& keys) {
    const std::unique_ptr<gguf_context, void (*)(gguf_context*)> context(gguf_init_empty(),
                                                                         gguf_free);
    std::array<const char*, 3> tokens = {"a", "b", sign};
    const std::array<int32_t, 3> types = {1, 1, 3};
    gguf_set_val_str(context.get(), "general.architecture", "qwen3moe");
    gguf_set_val_str(context.get(), "tokenizer.ggml.model", "gpt2");
    gguf_set_val_str(context.get(), "tokenizer.ggml.pre", "qwen2");
    gguf_set_arr_str(context.get(), "tokenizer.ggml.tokens", tokens.data(), tokens.size());
    gguf_set_arr_data(context.get(), "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types.data(),
                      types.size());
    for (const auto& [key, value] : keys) {
      gguf_set_val_str(context.get(), key.c_str(), value.c_str());
    }
    std::vector<uint8_t> written(gguf_get_meta_size(context.get()));
    gguf_get_meta_data(context.get(), written.data());
    return written;
  }

  Result<text::ChatTemplate> load(const std::string& choice = "auto") const {
    const auto tokenizer = load_tokenizer(file);
    EXPECT_TRUE(tokenizer) << tokenizer.error().message;
    return load_chat_template(file, *tokenizer, choice);
  }

  std::vector<uint8_t> bytes;
  model::GgufFile file;
};

TEST(LoadChatTemplate, TakesTheFilesOwn) {
  const ChatFile file("<|im_start|>", {{"tokenizer.chat_template", "own"},
                                       {"tokenizer.chat_template.tool_use", "with tools"}});
  EXPECT_EQ(file.load()->render({}), "own");
  EXPECT_EQ(file.load("")->render({}), "own");
  EXPECT_EQ(file.load("auto")->name(), "chat.gguf: tokenizer.chat_template");
  EXPECT_EQ(file.load("tool_use")->render({}), "with tools");
  EXPECT_THAT(file.load("chatml")->source(), HasSubstr("im_start"));
}

TEST(LoadChatTemplate, FallsBackToWhatFitsTheVocabulary) {
  std::string log;
  set_log_sink([&log](LogLevel, std::string_view line) { log += line; });
  EXPECT_EQ(ChatFile("<|im_start|>", {}).load()->name(), "chat template 'chatml'");
  EXPECT_THAT(log, HasSubstr("'chatml' fits its vocabulary"));
  EXPECT_EQ(ChatFile("[gMASK]", {}).load()->name(), "chat template 'glm'");
  log.clear();
  EXPECT_EQ(ChatFile("<other>", {}).load()->name(), "chat template 'chatml'");
  EXPECT_THAT(log, HasSubstr("no sign of a known one"));
  set_log_sink({});
}

TEST(LoadChatTemplate, ReadsFiles) {
  const test::TemporaryFolder folder;
  const ChatFile file("<|im_start|>", {});
  const std::string path = folder / "x.jinja";
  std::ofstream(path) << "from {{ 'a' }} file";
  EXPECT_EQ(file.load(path)->render({}), "from a file");
  std::ofstream(path) << "\n{{";
  const auto broken = file.load(path);
  ASSERT_FALSE(broken);
  EXPECT_THAT(broken.error().message, HasSubstr("x.jinja: line 2: "));
  std::ofstream(path) << std::string((1 << 20) + 1, ' ');
  EXPECT_THAT(file.load(path).error().message, HasSubstr("found more than 1 MiB"));
  EXPECT_EQ(file.load(folder.path().string()).error().code, ErrorCode::kIo);
}

TEST(LoadChatTemplate, RefusesWhatIsNone) {
  const auto absent = ChatFile("x", {}).load("absent");
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(absent.error().message,
              HasSubstr("found 'absent', expected auto, one of chatml, deepseek, glm, gpt-oss, "
                        "granite, llama3, mistral, a name from the model"));
  const auto broken = ChatFile("x", {{"tokenizer.chat_template", "{% x"}}).load();
  ASSERT_FALSE(broken);
  EXPECT_EQ(broken.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(broken.error().message, HasSubstr("chat.gguf: tokenizer.chat_template: line 1: "));
}

}  // namespace
}  // namespace hotset::engine
