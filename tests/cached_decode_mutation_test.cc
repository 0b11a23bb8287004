// The bit-identity of cached decode must notice a slot that is reused too early: an expert is
// copied into the slot of the next victim, which is still in the slot maps.
#include <gtest/gtest.h>

#include <vector>

#include "hotset/lanes/planned_lookup.h"
#include "tests/cached_decode.h"

namespace hotset::test {
namespace {

class EarlyReuse final : public lanes::PlanInterceptor {
 public:
  void planned(const cache::Lookup& lookup, lanes::PlannedLookup& plan) override {
    if (plan.is_streamed || plan.uploads.empty()) return;
    if (lookup.places.size() <= plan.uploads.size()) return;
    uploads_.assign(plan.uploads.begin(), plan.uploads.end());
    uploads_.push_back({plan.uploads[0].expert, lookup.places[plan.uploads.size()].slot});
    plan.uploads = uploads_;
  }

 private:
  std::vector<cache::Upload> uploads_;
};

TEST(SeededBug, SlotsThatAreReusedTooEarlyChangeTheLogits) {
  const auto path = model_of("qwen3moe");
  const std::vector<float> expected = script_without_cache(path);
  int n_caught = 0;
  for (const int64_t n_slots : {6, 12, 24}) {
    EarlyReuse bug;
    engine::EngineOptions options = cache_options("emu:clock=virtual", budget_for(path, n_slots));
    options.cache = {.rules = {.policy = "class_lru", .cpu_share = 0.5},
                     .hit_order = engine::HitOrder::kQueued,
                     .interceptor = &bug};
    const auto engine = make_engine(describe(path), options);
    ASSERT_NE(engine, nullptr);
    n_caught += run_script(*engine) != expected ? 1 : 0;
  }
  EXPECT_EQ(n_caught, 3);
}

}  // namespace
}  // namespace hotset::test
