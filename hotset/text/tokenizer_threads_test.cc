// One tokenizer used by several threads at once; run under ThreadSanitizer as well.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "hotset/base/thread_pool.h"
#include "hotset/text/text_test_util.h"
#include "hotset/text/tokenizer.h"

namespace hotset::text {
namespace {

void expect_the_same_at_once(TokenizerSpec spec) {
  constexpr uint64_t seed = 20261208;
  Random random(seed);
  const auto tokenizer = Tokenizer::create(std::move(spec));
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  const std::string text = random_text(random, 2000);
  const auto expected = tokenizer->encode(text);
  ASSERT_TRUE(expected) << expected.error().message;
  std::vector<int> equal(32, 0);
  parallel_for(equal.size(), 4, [&](size_t i) {
    const auto ids = tokenizer->encode(text);
    equal[i] = ids && *ids == *expected && tokenizer->decode(*ids) == text;
  });
  EXPECT_THAT(equal, testing::Each(1)) << "seed " << seed;
}

TEST(TokenizerThreads, EncodeTheSameAtOnce) {
  Random random(20261211);
  for (const char* pre : {"llama-bpe", "deepseek-llm", "superbpe"}) {
    expect_the_same_at_once(random_byte_level_spec(random, 50, pre));
  }
  expect_the_same_at_once(sentencepiece_spec({" ", "a", "b", "ab", " a"}));
}

}  // namespace
}  // namespace hotset::text
