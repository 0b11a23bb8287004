// The bit-identity of cached decode must notice a slot that is reused too early: this test is
// linked with a device cache that overwrites the next victim before it has left the slot maps.
#include <gtest/gtest.h>

#include "tests/cached_decode.h"

namespace hotset::test {
namespace {

TEST(SeededBug, SlotsThatAreReusedTooEarlyChangeTheLogits) {
  const auto path = model_of("qwen3moe");
  const std::vector<float> expected = script_without_cache(path);
  int n_caught = 0;
  for (const int64_t n_slots : {6, 12, 24}) {
    engine::EngineOptions options = cache_options("emu:clock=virtual", budget_for(path, n_slots));
    options.cache = {
        .policy = "class_lru", .cpu_share = 0.5, .hit_order = engine::HitOrder::kQueued};
    const auto engine = make_engine(describe(path), options);
    ASSERT_NE(engine, nullptr);
    n_caught += run_script(*engine) != expected ? 1 : 0;
  }
  EXPECT_EQ(n_caught, 3);
}

}  // namespace
}  // namespace hotset::test
