// `hotset tokenize` over the golden vocabulary: what it prints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "hotset/cli/tokenize_command.h"

namespace hotset::cli {
namespace {

using testing::HasSubstr;

class TokenizeCommand : public testing::Test {
 protected:
  void SetUp() override {
    const char* shared = std::getenv("HOTSET_SHARED_DIR");
    if (shared != nullptr)
      file_ = std::filesystem::path(shared) / "golden/tokenizer/bpe-vocab.gguf";
    if (!std::filesystem::exists(file_)) {
      GTEST_SKIP() << "HOTSET_SHARED_DIR has no golden/tokenizer/bpe-vocab.gguf";
    }
  }

  // What the command printed.
  std::string run(TokenizeOptions options) const {
    options.model = file_.string();
    testing::internal::CaptureStdout();
    const Status status = tokenize(options);
    const std::string printed = testing::internal::GetCapturedStdout();
    EXPECT_TRUE(status) << status.error().message;
    return printed;
  }

  std::filesystem::path file_;
};

TEST_F(TokenizeCommand, PrintsIdAndBytesOfEachToken) {
  EXPECT_EQ(run({.pre = "qwen2", .text = "a\n'\xFF"}),
            "     97  'a'\n     10  '\\n'\n     39  '\\''\n    255  '\\xff'\n");
  EXPECT_EQ(run({.text = ""}), "");
}

TEST_F(TokenizeCommand, JsonIsAnArrayOfIds) {
  EXPECT_EQ(run({.text = "a<|im_end|>", .json = true}).substr(0, 4), "[97,");
  EXPECT_EQ(run({.parse_special = true, .text = "a<|im_end|>", .json = true}), "[97,4094]\n");
  EXPECT_EQ(run({.text = "", .json = true}), "[]\n");
}

TEST_F(TokenizeCommand, ErrorsNameTheFile) {
  const Status unknown = tokenize({.model = file_.string(), .pre = "gpt-5", .text = "a"});
  ASSERT_FALSE(unknown);
  EXPECT_THAT(unknown.error().message, HasSubstr("bpe-vocab.gguf"));
  EXPECT_THAT(unknown.error().message, HasSubstr("'gpt-5'"));
  EXPECT_FALSE(tokenize({.model = "/nowhere.gguf", .text = "a"}));
}

}  // namespace
}  // namespace hotset::cli
