#include "hotset/policy/crf_table.h"

#include <gtest/gtest.h>

#include <cmath>

#include "hotset/policy/crf.h"
#include "hotset/policy/crf_bank.h"
#include "hotset/policy/policy_testing.h"

namespace hotset::policy {
namespace {

TEST(CrfTable, DecaysByHalfEveryHalfLife) {
  for (const int32_t half_life : {1, 2, 3, 7, 128, 65536}) {
    const CrfTable table(1, 1, half_life);
    EXPECT_EQ(table.decay(0), 1.0F);
    EXPECT_EQ(table.decay(half_life), 0.5F);
    EXPECT_EQ(table.decay(10 * int64_t{half_life}), 0x1p-10F);
    EXPECT_EQ(table.decay(INT64_MAX), 0.0F) << "ages have no bound";
    float before = 1;
    for (int64_t age = 1; age < 300; age++) {
      const float decay = table.decay(age);
      EXPECT_LE(decay, before);
      const double exact = std::exp2(-static_cast<double>(age) / half_life);
      // Until it is far below half a unit of the last place of 1.
      if (exact <= 0x1p-100) break;
      EXPECT_NEAR(decay / exact, 1, 1e-7);
      before = decay;
    }
  }
}

TEST(CrfTable, CountsUsesThatDecayByTheLayersOwnClock) {
  CrfTable table(2, 3, 4);
  table.use(0, 1);
  EXPECT_EQ(table.crf(1), 1.0F);
  table.advance(0, 4);
  table.advance(1, 100);
  EXPECT_EQ(table.decayed(1), 0.5F);
  EXPECT_EQ(table.after_use(1), 1.5F);
  table.use(0, 1);
  EXPECT_EQ(table.crf(1), 1.5F);
  EXPECT_EQ(table.age(1), 0);
  EXPECT_EQ(table.last_use(1), 4);
  table.use(1, 5);
  EXPECT_EQ(table.last_use(5), 100);
  EXPECT_EQ(table.crf(4), 0.0F);
}

TEST(CrfTable, AnExpertOfEveryTokenIsExpectedOncePerToken) {
  CrfTable table(1, 1, 128);
  for (int i = 0; i < 20'000; i++) {
    table.use(0, 0);
    table.advance(0, 1);
  }
  EXPECT_NEAR(table.uses_per_token(table.crf(0)), 1, 1e-3);
}

// The keys order experts of a layer as their CRFs do, at any later time.
TEST(CrfKey, KeepsTheOrderThatDecayKeeps) {
  Random random(test::test_seed());
  for (const int32_t half_life : {1, 8, 100}) {
    CrfTable table(1, 2, half_life);
    for (int i = 0; i < 3000; i++) {
      if (random.below(3) == 0) table.use(0, static_cast<ExpertIndex>(random.below(2)));
      table.advance(0, static_cast<int32_t>(random.below(4)));
      const double a = table.decayed(0);
      const double b = table.decayed(1);
      if (table.crf(0) == 0 || table.crf(1) == 0 || std::abs(a / b - 1) < 1e-5) continue;
      if (a < 1e-30 || b < 1e-30) continue;
      const int64_t key_a = crf_key(table.crf(0), table.last_use(0), half_life);
      const int64_t key_b = crf_key(table.crf(1), table.last_use(1), half_life);
      EXPECT_EQ(key_a < key_b, a < b);
    }
  }
}

TEST(CrfBank, AgreesWithATablePerHalfLife) {
  Random random(test::test_seed());
  CrfBank bank(2, 4);
  const std::array<CrfEstimate, 4> estimates = {CrfEstimate::kHalfLife2, CrfEstimate::kHalfLife8,
                                                CrfEstimate::kHalfLife32,
                                                CrfEstimate::kHalfLife128};
  std::vector<CrfTable> tables;
  for (const int32_t half_life : {2, 8, 32, 128}) tables.emplace_back(2, 4, half_life);
  for (int i = 0; i < 5000; i++) {
    const auto layer = static_cast<int32_t>(random.below(2));
    const auto expert = layer * 4 + static_cast<ExpertIndex>(random.below(4));
    const auto n_tokens = static_cast<int32_t>(1 + random.below(i % 50 == 0 ? 3000 : 3));
    bank.use(layer, expert);
    bank.advance(layer, n_tokens);
    for (size_t h = 0; h < tables.size(); h++) {
      tables[h].use(layer, expert);
      tables[h].advance(layer, n_tokens);
      const CrfTable& table = tables[h];
      const auto asked = static_cast<ExpertIndex>(random.below(8));
      ASSERT_EQ(bank.uses_per_token(estimates[h], asked),
                table.uses_per_token(table.decayed(asked)));
      ASSERT_EQ(bank.uses_per_token_after_use(estimates[h], asked),
                table.uses_per_token(table.after_use(asked)));
      ASSERT_EQ(bank.key(estimates[h], asked),
                crf_key(table.crf(asked), table.last_use(asked), table.half_life_tokens()));
    }
    ASSERT_EQ(bank.class_crf(expert), tables[3].crf(expert));
    ASSERT_EQ(bank.age(expert), tables[0].age(expert));
  }
}

}  // namespace
}  // namespace hotset::policy
