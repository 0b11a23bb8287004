#include "hotset/server/prompt_store.h"

#include <gtest/gtest.h>

namespace hotset::server {
namespace {

using Ids = std::vector<int32_t>;

SavedPrompt prompt(Ids tokens, size_t n_bytes = 100) {
  return {.tokens = std::move(tokens), .state = std::vector<uint8_t>(n_bytes)};
}

TEST(PromptStore, FindsTheLongestBeginning) {
  PromptStore store({1 << 20});
  store.add(prompt({1, 2, 3}));
  store.add(prompt({1, 2, 4, 5}));
  EXPECT_EQ(store.best_prefix(Ids{1, 2, 4, 6}), 3);
  EXPECT_EQ(store.best_prefix(Ids{7}), 0);
  EXPECT_FALSE(store.take(Ids{7}));
  const auto taken = store.take(Ids{1, 2, 4, 6});
  ASSERT_TRUE(taken);
  EXPECT_EQ(taken->tokens, (Ids{1, 2, 4, 5}));
  EXPECT_EQ(store.n_prompts(), 1);
  EXPECT_EQ(store.used().count, 112);
}

TEST(PromptStore, KeepsTheLongerOfTwoThatBeginAlike) {
  PromptStore store({1 << 20});
  store.add(prompt({1, 2}));
  store.add(prompt({1, 2, 3}));
  EXPECT_EQ(store.n_prompts(), 1);
  store.add(prompt({1}));
  EXPECT_EQ(store.n_prompts(), 1);
  EXPECT_TRUE(store.covers(Ids{1, 2, 3}));
  EXPECT_FALSE(store.covers(Ids{1, 2, 3, 4}));
}

TEST(PromptStore, DropsWhatWasNotUsedForLongest) {
  PromptStore store({330});
  store.add(prompt({1}));
  store.add(prompt({2}));
  store.add(prompt({3}));
  EXPECT_TRUE(store.covers(Ids{1}));
  store.add(prompt({4}));
  EXPECT_FALSE(store.covers(Ids{2}));
  EXPECT_TRUE(store.covers(Ids{1}));
  EXPECT_LE(store.used(), store.capacity());
  store.add(prompt({5}, 1000));
  EXPECT_FALSE(store.covers(Ids{5}));
  EXPECT_EQ(store.n_prompts(), 3);
}

TEST(PromptStore, OfNoSizeKeepsNothing) {
  PromptStore store({});
  store.add(prompt({1}));
  EXPECT_EQ(store.n_prompts(), 0);
}

}  // namespace
}  // namespace hotset::server
