#include "hotset/policy/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace hotset::policy {
namespace {

using ::testing::HasSubstr;

constexpr PolicyShape kShape{.n_layers = 2, .n_expert = 4, .n_slots = 3};

ErrorCode code_of(std::string_view name, const PolicyConfig& config) {
  const auto policy = make_policy(name, config);
  return policy ? ErrorCode::kInternal : policy.error().code;
}

TEST(PolicyRegistry, MakesEveryNameItLists) {
  const std::vector<uint64_t> profile(8, 1);
  const RecordedFuture future(8);
  for (const std::string_view name : policy_names()) {
    const PolicyTraits traits = policy_traits(name).value();
    PolicyConfig config{.shape = kShape, .profile = profile, .future = &future};
    if (traits.needs_all_slots) config.shape.n_slots = 8;
    const auto policy = make_policy(name, config);
    ASSERT_TRUE(policy) << policy.error().message;
    EXPECT_THAT((*policy)->explain(), HasSubstr(std::string(name))) << "says its name";
  }
}

TEST(PolicyRegistry, SaysWhatPoliciesNeed) {
  EXPECT_TRUE(policy_traits("belady")->needs_future);
  EXPECT_FALSE(policy_traits("belady")->always_inserts);
  EXPECT_TRUE(policy_traits("belady-demand")->needs_future);
  EXPECT_TRUE(policy_traits("belady-demand")->always_inserts);
  EXPECT_TRUE(policy_traits("static")->needs_profile);
  EXPECT_FALSE(policy_traits("static")->always_inserts);
  EXPECT_TRUE(policy_traits("unbounded")->needs_all_slots);
  for (const std::string_view name :
       {"class_lru", "crf", "crf:8", "crf-blend", "crf-auto", "lru"}) {
    const PolicyTraits traits = policy_traits(name).value();
    EXPECT_FALSE(traits.needs_future || traits.needs_profile || traits.needs_all_slots) << name;
    EXPECT_TRUE(traits.always_inserts) << name;
  }
}

TEST(PolicyRegistry, RefusesUnknownNamesAndListsTheKnown) {
  for (const std::string_view name :
       {"", "LRU", "class-lru", "crf ", "lru:2", ":2", "class_lru:8", "belady-demand:1"}) {
    const auto traits = policy_traits(name);
    ASSERT_FALSE(traits) << name;
    EXPECT_EQ(traits.error().code, ErrorCode::kNotFound);
    EXPECT_THAT(traits.error().message, HasSubstr("class_lru, crf, crf-blend, crf-auto"));
    EXPECT_EQ(code_of(name, {.shape = kShape}), ErrorCode::kNotFound);
  }
}

TEST(PolicyRegistry, TakesHalfLivesInRange) {
  for (const std::string_view name : {"crf:1", "crf:65536"}) EXPECT_TRUE(policy_traits(name));
  for (const std::string_view name : {"crf:", "crf:0", "crf:-1", "crf:65537", "crf:8x", "crf:2.5",
                                      "crf: 8", "crf:99999999999999999999", "crf:8:8"}) {
    const auto traits = policy_traits(name);
    ASSERT_FALSE(traits) << name;
    EXPECT_EQ(traits.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(traits.error().message, HasSubstr("1 to 65536"));
  }
}

TEST(PolicyRegistry, RefusesShapesThatMakeNoSense) {
  for (const PolicyShape shape :
       {PolicyShape{0, 4, 1}, PolicyShape{1, 0, 1}, PolicyShape{1, 4, 0}, PolicyShape{1, 4, 5},
        PolicyShape{-1, 4, 1}, PolicyShape{1 << 20, 1 << 20, 1}}) {
    EXPECT_EQ(code_of("lru", {.shape = shape}), ErrorCode::kInvalidArgument);
  }
}

TEST(PolicyRegistry, RefusesWithoutWhatAPolicyNeeds) {
  const std::vector<uint64_t> short_profile(7, 1);
  EXPECT_EQ(code_of("static", {.shape = kShape}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of("static", {.shape = kShape, .profile = short_profile}),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of("belady", {.shape = kShape}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of("belady-demand", {.shape = kShape}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of("unbounded", {.shape = kShape}), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace hotset::policy
