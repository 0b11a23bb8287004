// Prefills that stream experts through the staging area, on devices that are late, refuse pinned
// memory, or fail in the middle of the chunks; and the ring through which they stream, where it is
// small.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "hotset/device/device_testing.h"
#include "hotset/engine/experts/upload_ring.h"
#include "tests/cached_decode.h"

namespace hotset::test {
namespace {

using engine::EngineOptions;
using testing::HasSubstr;

constexpr size_t kPrompt = 200;
constexpr int32_t kUbatch = 64;  // the prompt is three prefills, and 8 tokens that are none
constexpr int64_t kPrefills = 3;
// Of the last layer only the rows whose logits are wanted are computed, which is no prefill.
constexpr int64_t kStreamed = kLayers - 1;
constexpr int64_t kSlots = 6;  // of 48 experts: most of a prefill must pass through

// A machine whose link is worth using for about all of a prefill's misses, and one with which the
// CPU takes a part of them. Given, not measured: what is streamed must not hang on the real clock.
constexpr lanes::LaneRates kFastLink = {
    .link_gb_per_s = 100, .cpu_gb_per_s = 1, .device_gb_per_s = 200};
constexpr lanes::LaneRates kBothLanes = {
    .link_gb_per_s = 2, .cpu_gb_per_s = 1, .device_gb_per_s = 200};

// Who decides what crosses the link.
struct Split {
  const char* name;
  std::optional<double> share;  // none: auto
  std::optional<lanes::LaneRates> rates;
};
const std::vector<Split> kSplits = {{"share 0", 0.0, kFastLink},
                                    {"share 0.5", 0.5, kFastLink},
                                    {"auto, fast link", {}, kFastLink},
                                    {"auto, both lanes", {}, kBothLanes}};

EngineOptions streaming_options(const std::string& device, Bytes cache, const Split& split = {}) {
  EngineOptions options = cache_options(device, cache);
  options.context.n_ubatch = kUbatch;
  options.cache.rules.cpu_share = split.share;
  options.cache.rules.rates = split.rates;
  return options;
}

// Two prompts, and tokens after each: the second one finds a warm cache.
std::vector<float> run_prompts(engine::Engine& engine) {
  std::vector<float> logits;
  uint64_t seed = 40;
  for (const size_t n : {kPrompt, size_t{1}, size_t{1}, kPrompt, size_t{1}}) {
    const auto row = decode(engine, as_batch(some_ids(n, ++seed), false, engine.next_position(0)));
    logits.insert(logits.end(), row.begin(), row.end());
  }
  return logits;
}

std::vector<float> prompts_without_cache(const std::filesystem::path& path) {
  const auto engine = make_engine(describe(path), streaming_options("", {}));
  return engine == nullptr ? std::vector<float>() : run_prompts(*engine);
}

// Experts of a layer that were streamed in prefills.
int64_t n_streamed(const engine::Engine& engine, int64_t layer) {
  const auto& cache = *engine.cache();
  return cache.core()
             .counts(static_cast<int32_t>(layer))[cache::BatchClass::kMore]
             .streamed_bytes.count /
         cache.expert_bytes(layer).count;
}

// Whether `n_prefills` were streamed such that in some of them both halves of the staging area were
// used again: what the slots cannot take, and more than the area holds.
void expect_halves_used_again(const engine::Engine& engine, int64_t n_prefills) {
  for (int64_t layer = 0; layer < kStreamed; ++layer) {
    EXPECT_GT(n_streamed(engine, layer),
              n_prefills * (kSlots + engine.cache()->banks().layer(layer)->n_stage));
  }
}

class Streaming : public testing::TestWithParam<std::string> {};

TEST_P(Streaming, LateCopiesAndPageableMemoryChangeNoBit) {
  const auto path = model_of(GetParam());
  const std::vector<float> expected = prompts_without_cache(path);
  for (const auto& fault :
       values<std::string>({"late_us=200", "late_us=300,late_seed=2", "late_us=40,late_seed=3,us=0",
                            "refuse_pinned=1", "refuse_pinned=1,late_us=100,late_seed=4"},
                           2)) {
    for (const Split& split : kSplits) {
      for (const engine::LoadMode mode : {engine::LoadMode::kMmap, engine::LoadMode::kPinned}) {
        EngineOptions options = streaming_options("emu:" + fault, budget_for(path, kSlots), split);
        options.load.load_mode = mode;
        const auto engine = make_engine(describe(path), options);
        ASSERT_NE(engine, nullptr);
        EXPECT_EQ(run_prompts(*engine), expected) << fault << ", " << split.name;
        for (int64_t layer = 0; layer < kStreamed; ++layer) {
          EXPECT_GT(n_streamed(*engine, layer), 0) << fault << ", " << split.name;
        }
        if (split.share == 0.0) expect_halves_used_again(*engine, 2 * kPrefills);
      }
    }
  }
}

// As the user has it: rates are measured, with the virtual clock on a device whose copies are late
// all the same.
TEST_P(Streaming, MeasuredAutoIsTheSameBitsWhenCopiesAreLate) {
  const auto path = model_of(GetParam());
  const std::vector<float> expected = prompts_without_cache(path);
  for (const std::string fault : {"late_us=300", "late_us=300,late_seed=2", "refuse_pinned=1"}) {
    const auto engine = make_engine(
        describe(path), streaming_options("emu:clock=virtual,gbps=100,us=1,cpu_gbps=1," + fault,
                                          budget_for(path, kSlots)));
    ASSERT_NE(engine, nullptr);
    EXPECT_EQ(run_prompts(*engine), expected) << fault;
    expect_halves_used_again(*engine, 2 * kPrefills);
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, Streaming, testing::Values("qwen3moe", "gpt-oss"),
                         [](const auto& p) {
                           std::string name = p.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

int64_t n_copies(engine::Engine& engine) {
  const device::DeviceCounters& counters = engine.device()->counters();
  return counters.n_uploads + counters.n_downloads;
}

// What one prompt on a device that fails came to.
struct Failure {
  std::string message;    // empty: it did not fail
  bool at_start = false;  // the engine could not be made
  int64_t n_streamed = 0;
};

Failure prompt_on(const std::string& device, const Split& split) {
  const auto path = model_of("qwen3moe");
  const auto options = streaming_options(device, budget_for(path, kSlots), split);
  auto engine = engine::Engine::create(describe(path), options);
  if (!engine) {
    EXPECT_EQ(engine.error().code, ErrorCode::kDevice) << device;
    return {.message = engine.error().message, .at_start = true};
  }
  const auto batch = as_batch(some_ids(kPrompt, 41), false);
  const auto result = (*engine)->decode(batch);
  Failure failure;
  for (int64_t layer = 0; layer < kStreamed; ++layer) {
    failure.n_streamed += n_streamed(**engine, layer);
  }
  if (result) return failure;
  failure.message = result.error().message;
  EXPECT_EQ(result.error().code, ErrorCode::kDevice) << device;
  // Nothing of the prompt is left, and whatever is tried next is refused for the same reason.
  EXPECT_EQ((*engine)->next_position(0), 0) << device;
  const auto again = (*engine)->decode(batch);
  EXPECT_FALSE(again) << device;
  EXPECT_EQ(again.error_or(Error{}).message, failure.message) << device;
  const auto without_cache = (*engine)->set_cache(Bytes{}, options.cache);
  EXPECT_FALSE(without_cache) << device;
  EXPECT_EQ(without_cache.error_or(Error{}).message, failure.message) << device;
  return failure;
}

// The copies of a prompt on a device that does not fail: (first, last + 1), counted as its faults
// are.
std::array<int64_t, 2> copies_of_prompt(const Split& split) {
  const auto path = model_of("qwen3moe");
  const auto engine =
      make_engine(describe(path), streaming_options("emu", budget_for(path, kSlots), split));
  if (engine == nullptr) return {};
  const int64_t first = n_copies(*engine) + 1;
  decode(*engine, as_batch(some_ids(kPrompt, 41), false));
  expect_halves_used_again(*engine, split.share == 0.0 ? kPrefills : 0);
  return {first, n_copies(*engine) + 1};
}

TEST(StreamingFailures, ACopyThatFailsAtAnyPlaceIsNamedAndEndsThePrompt) {
  const Split& split = kSplits[0];
  const auto [first, end] = copies_of_prompt(split);
  ASSERT_GT(end - first, 100);
  std::set<int64_t> progress;  // experts that were streamed before somebody noticed
  int64_t n_failed = 0;
  int64_t n_in_chunks = 0;
  std::set<std::string> layers;
  for (int64_t n = first; n < end; n += kSanitized ? 29 : 2) {
    const Failure failure = prompt_on("emu:fail_copy=" + std::to_string(n), split);
    EXPECT_THAT(failure.message, HasSubstr("copy " + std::to_string(n) + " failed"));
    EXPECT_FALSE(failure.at_start);
    ++n_failed;
    for (int64_t layer = 0; layer < kStreamed; ++layer) {
      const std::string place = "(layer " + std::to_string(layer) + ")";
      const bool is_chunk = failure.message.find("upload 'stream' " + place) != std::string::npos ||
                            failure.message.find("upload 'prefetch' " + place) != std::string::npos;
      if (!is_chunk) continue;
      ++n_in_chunks;
      layers.insert(place);
      progress.insert(failure.n_streamed);
    }
  }
  // Many copies of a prompt are those of chunks: the first one, the next one, and all others.
  EXPECT_GT(3 * n_in_chunks, n_failed);
  EXPECT_EQ(std::ssize(layers), kStreamed);
  EXPECT_GT(progress.size(), kSanitized ? 2U : 5U);
  EXPECT_EQ(prompt_on("emu:fail_copy=" + std::to_string(end), split).message, "");
}

TEST(StreamingFailures, EveryKindOfFailureEndsThePromptWithEveryLane) {
  for (const Split& split : kSplits) {
    const auto [first, end] = copies_of_prompt(split);
    const int64_t step = (end - first) / (kSanitized ? 2 : 5);
    for (const std::string fault : {"fail_copy", "short_copy", "fail_graph", "vanish"}) {
      int64_t n_after_streaming = 0;
      for (int64_t n = first + 1; n < end; n += step) {
        // The other queue and the CPU lane are at work for a while yet.
        for (const std::string late : {"", ",late_us=100"}) {
          std::string device = "emu:" + fault;
          device += "=" + std::to_string(n) + late;
          const Failure failure = prompt_on(device, split);
          EXPECT_TRUE(fault == "fail_graph" || failure.message != "") << device;
          if (failure.message.empty() || failure.at_start) continue;
          EXPECT_THAT(failure.message, HasSubstr(std::to_string(n))) << device;
          n_after_streaming += failure.n_streamed > 0 ? 1 : 0;
        }
      }
      EXPECT_GT(n_after_streaming, 0) << fault << ", " << split.name;
    }
  }
}

// A ring of `n_bytes` on a device whose copies are late, and a tensor that it brings there.
class SmallRing : public testing::TestWithParam<int64_t> {};

TEST_P(SmallRing, BringsEveryByteInOrder) {
  constexpr int64_t kFloats = 500;
  for (const std::string fault : {"late_us=30", "late_us=30,late_seed=2", "refuse_pinned=1"}) {
    auto device = device::open_device("emu:us=0," + fault, {});
    ASSERT_TRUE(device) << device.error().message;
    device::Tensors tensors;
    ggml_tensor* to = tensors.vector(kFloats);
    const auto allocated = tensors.allocate(**device);
    ASSERT_TRUE(allocated) << allocated.error().message;
    auto ring = engine::UploadRing::create(**device, Bytes{GetParam()});
    ASSERT_TRUE(ring) << ring.error().message;
    EXPECT_EQ((*ring)->pinned(), fault != "refuse_pinned=1");

    Random random(5);
    std::vector<uint8_t> expected(kFloats * sizeof(float));
    std::vector<uint8_t> source(expected.size());
    (*device)->reset_counters();
    // Overlapping ranges: the last one counts, so none may overtake another.
    for (int i = 0; i < 60; ++i) {
      const auto begin = static_cast<size_t>(random.below(expected.size()));
      // Some laps, and not many more: a copy of a byte is late like any other.
      const auto n = std::min(1 + static_cast<size_t>(random.below(expected.size() - begin)),
                              10 * static_cast<size_t>(GetParam()));
      for (size_t b = 0; b < n; ++b) source[b] = static_cast<uint8_t>(random.below(256));
      std::memcpy(expected.data() + begin, source.data(), n);
      const auto status = (*ring)->upload(to, begin, source.data(), n, {"ring"});
      ASSERT_TRUE(status) << status.error().message;
      std::memset(source.data(), 0, n);  // was read before upload() returned
    }
    EXPECT_GT((*device)->counters().n_waits, 0);
    ASSERT_TRUE((*device)->wait_idle());
    EXPECT_EQ(std::memcmp(to->data, expected.data(), expected.size()), 0) << fault;
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, SmallRing, testing::Values(4, 7, 64, 1000));

// A ring of 64 MiB, and a layer that is larger: the host waits for room within the chunks.
TEST(StreamingPrefill, WaitsForRoomInARingThatIsSmallerThanALayer) {
  if (kSanitized) GTEST_SKIP() << "a large model; SmallRing does the same with a small one";
  const TemporaryFolder folder;
  const auto path = folder / "wide.gguf";
  ASSERT_TRUE(engine::write_random_model({.n_layer = 2,
                                          .n_embd = 256,
                                          .n_ff_expert = 4096,
                                          .n_vocab = kVocabulary,
                                          .expert_type = GGML_TYPE_F16},
                                         path));
  const std::vector<float> expected = prompts_without_cache(path);
  for (const std::string fault : {"late_us=300", "refuse_pinned=1"}) {
    EngineOptions options =
        streaming_options("emu:us=0,gbps=20," + fault, budget_for(path, kSlots), kSplits[0]);
    options.load.load_mode = engine::LoadMode::kMmap;
    const auto engine = make_engine(describe(path), options);
    ASSERT_NE(engine, nullptr);
    EXPECT_FALSE(engine->cache()->banks().source_is_pinned());
    EXPECT_GT((expert_bytes(path) * (kExperts - kSlots)).count, mib(56).count);
    engine->device()->reset_counters();
    EXPECT_EQ(run_prompts(*engine), expected) << fault;
    EXPECT_GT(n_streamed(*engine, 0), 0);
    // Beside those for routings and logits.
    const int64_t n_others = 2 * (2 * (kPrefills + 1) + 3) + 5;
    EXPECT_GT(engine->device()->counters().n_waits, n_others);
  }
}

}  // namespace
}  // namespace hotset::test
