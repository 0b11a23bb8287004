// The engine with a device: the same bits as the CPU alone, the counts it promises, the times of
// the virtual clock, and what happens when the device fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "hotset/base/random.h"
#include "hotset/engine/experts/cpu_lane.h"
#include "hotset/engine/run/device_graphs.h"
#include "hotset/engine/run/engine.h"
#include "hotset/engine/weights/random_model.h"
#include "hotset/model/gguf_testing.h"
#include "tests/cached_decode.h"
#include "tests/engine_fixture.h"
#include "tests/test_files.h"

namespace hotset::test {
namespace {

using engine::EngineOptions;
using engine::FlashAttention;
using testing::HasSubstr;

EngineOptions options_with(const std::string& device, std::optional<int64_t> n_gpu_layers = {},
                           FlashAttention flash_attention = FlashAttention::kOn) {
  return {.n_threads = 1,
          .context = {.n_ctx = 512, .flash_attention = flash_attention},
          .load = {.repack = false},
          .device = device,
          .n_gpu_layers = n_gpu_layers};
}

// Logits of a prompt's last token and of four tokens decoded after it.
std::vector<float> prompt_and_decode(engine::Engine& engine, size_t n_prompt) {
  std::vector<float> logits = decode(engine, as_batch(some_ids(n_prompt, 3), false));
  for (const int32_t id : some_ids(4, 4)) {
    const auto row = decode(engine, as_batch({&id, 1}, true, engine.next_position(0)));
    logits.insert(logits.end(), row.begin(), row.end());
  }
  return logits;
}

std::vector<std::string> all_architectures() {
  const auto names = engine::architecture_names();
  return {names.begin(), names.end()};
}

class SameBits : public testing::TestWithParam<std::tuple<std::string, FlashAttention, size_t>> {};

TEST_P(SameBits, OnTheCpuAndOnTheDeviceForEveryPlacement) {
  const auto& [architecture, flash_attention, n_prompt] = GetParam();
  const auto path = model_of(architecture);
  const auto alone = make_engine(describe(path), options_with("", {}, flash_attention));
  const std::vector<float> expected = prompt_and_decode(*alone, n_prompt);
  for (int64_t n_gpu_layers = 0; n_gpu_layers <= kLayers + 1; ++n_gpu_layers) {
    const auto engine = make_engine(
        describe(path), options_with("emu:clock=virtual", n_gpu_layers, flash_attention));
    ASSERT_NE(engine, nullptr);
    EXPECT_EQ(prompt_and_decode(*engine, n_prompt), expected) << "-ngl " << n_gpu_layers;
  }
}

INSTANTIATE_TEST_SUITE_P(Matrix, SameBits,
                         testing::Combine(testing::ValuesIn(all_architectures()),
                                          testing::Values(FlashAttention::kOff,
                                                          FlashAttention::kOn),
                                          testing::Values(1, 33, 200)),
                         [](const auto& p) {
                           std::string name = std::get<0>(p.param);
                           std::ranges::replace(name, '-', '_');
                           name += std::get<1>(p.param) == FlashAttention::kOn ? "_fa_" : "_plain_";
                           return name + std::to_string(std::get<2>(p.param));
                         });

struct OddShape {
  std::string name;
  engine::RandomModelOptions model;
};

void PrintTo(const OddShape& shape, std::ostream* out) { *out << shape.name; }

class OddShapes : public testing::TestWithParam<OddShape> {};

// Room for half of a model's experts.
Bytes half_cache(const std::filesystem::path& path) {
  Bytes total;
  const auto description = describe(path);
  for (const auto& tensor : description.file.tensors()) {
    if (tensor.name.ends_with("_exps.weight")) total += tensor.n_bytes;
  }
  return {total.count / 2};
}

TEST_P(OddShapes, TheSameBitsOnTheCpuAndOnTheDevice) {
  const TemporaryFolder folder;
  engine::RandomModelOptions model = GetParam().model;
  model.n_vocab = kVocabulary;
  const auto status = engine::write_random_model(model, folder / "odd.gguf");
  ASSERT_TRUE(status) << status.error().message;
  const auto alone = make_engine(describe(folder / "odd.gguf"), options_with(""));
  const auto engine = make_engine(describe(folder / "odd.gguf"), options_with("emu:clock=virtual"));
  ASSERT_NE(engine, nullptr);
  const auto expected = prompt_and_decode(*alone, 9);
  EXPECT_EQ(prompt_and_decode(*engine, 9), expected);
  EngineOptions cached_options = options_with("emu:clock=virtual");
  cached_options.cache_bytes = half_cache(folder / "odd.gguf");
  const auto cached = make_engine(describe(folder / "odd.gguf"), cached_options);
  ASSERT_NE(cached, nullptr);
  EXPECT_EQ(prompt_and_decode(*cached, 9), expected);
}

INSTANTIATE_TEST_SUITE_P(
    Table, OddShapes,
    testing::Values(
        OddShape{"many_experts",
                 {.n_layer = 2, .n_expert = 512, .n_expert_used = 10, .n_ff_expert = 32}},
        OddShape{"two_experts", {.n_expert = 2, .n_expert_used = 1}},
        OddShape{"groups_of_twenty",
                 {.architecture = "deepseek2",
                  .n_layer = 3,
                  .n_expert = 160,
                  .n_expert_used = 6,
                  .n_ff_expert = 32}},
        // 3 * 384 * 32 values of 0.5625 bytes: 20 KB.
        OddShape{"small_experts", {.n_embd = 384, .n_ff_expert = 32}},
        // 3 * 1024 * 5120 values of 4 bytes: 60 MiB.
        OddShape{"large_experts",
                 {.n_layer = 1,
                  .n_embd = 1024,
                  .n_expert = 2,
                  .n_expert_used = 1,
                  .n_ff_expert = 5120,
                  .expert_type = GGML_TYPE_F32}},
        OddShape{"merged_gate_up", {.architecture = "glm4moe", .merged_gate_up = true}},
        OddShape{"merged_gate_up_biases", {.architecture = "gpt-oss", .merged_gate_up = true}},
        OddShape{"two_groups", {.odd_expert_type = GGML_TYPE_Q8_0}},
        OddShape{"every_second_layer",
                 {.architecture = "olmoe", .n_layer = 5, .moe_layer_step = 2}},
        OddShape{"mxfp4", {.architecture = "gpt-oss", .expert_type = GGML_TYPE_MXFP4}}),
    [](const auto& shape) { return shape.param.name; });

// A model with experts of a type that ggml writes with an importance matrix only: all ones.
bool write_with_importance(const std::filesystem::path& path, ggml_type type) {
  // Their tables take seconds to make, and nothing of them is hotset's.
  if (kSanitized || !ggml_quantize_requires_imatrix(type)) return false;
  const auto status = engine::write_random_model({.n_layer = 1,
                                                  .n_expert = 4,
                                                  .n_expert_used = 2,
                                                  .n_ff_expert = 256,
                                                  .n_vocab = kVocabulary,
                                                  .expert_type = GGML_TYPE_F32},
                                                 path);
  HOTSET_CHECK(status.has_value());
  const auto made = model::GgufFile::open(path);
  model::GgufBytes file(*made);
  for (model::TensorEntry& tensor : file.tensors) {
    if (!tensor.name.ends_with("_exps.weight")) continue;
    const int64_t n_columns = tensor.ne[0];
    const int64_t n_rows = tensor.ne[1] * tensor.ne[2];
    const std::vector<float> importance(static_cast<size_t>(n_columns), 1.0F);
    std::vector<float> values(static_cast<size_t>(n_columns * n_rows));
    std::memcpy(values.data(), tensor.data->data(), tensor.data->size());
    std::vector<uint8_t> quantized(ggml_row_size(type, n_columns) * static_cast<size_t>(n_rows));
    ggml_quantize_chunk(type, values.data(), quantized.data(), 0, n_rows, n_columns,
                        importance.data());
    tensor.type = type;
    tensor.data = std::move(quantized);
  }
  file.write(path);
  return true;
}

// Room for `n_slots` experts of a model with one group.
Bytes cache_for(const std::filesystem::path& path, int64_t n_slots) {
  Bytes one;
  const auto description = describe(path);
  for (const auto& tensor : description.file.tensors()) {
    if (tensor.name.ends_with("_exps.weight")) one += {tensor.n_bytes.count / tensor.ne[2]};
  }
  return one * (n_slots + 1) + Bytes{1024};
}

TEST(DeviceEngine, ExpertsOfEveryTypeAreTheSameBits) {
  const TemporaryFolder folder;
  const auto path = folder / "typed.gguf";
  int n_computed = 0;
  for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
    const auto type = static_cast<ggml_type>(i);
    if (ggml_type_size(type) == 0) continue;  // removed from ggml
    SCOPED_TRACE(ggml_type_name(type));
    const auto status = engine::write_random_model({.n_layer = 1,
                                                    .n_expert = 4,
                                                    .n_expert_used = 2,
                                                    .n_ff_expert = 256,
                                                    .n_vocab = kVocabulary,
                                                    .expert_type = type},
                                                   path);
    if (!status && !write_with_importance(path, type)) continue;  // no type for weights
    const auto alone = engine::Engine::create(describe(path), options_with(""));
    if (!alone) {
      EXPECT_EQ(alone.error().code, ErrorCode::kUnsupported) << alone.error().message;
      continue;
    }
    const auto engine = make_engine(describe(path), options_with("emu:clock=virtual"));
    ASSERT_NE(engine, nullptr);
    const auto expected = prompt_and_decode(**alone, 9);
    EXPECT_EQ(prompt_and_decode(*engine, 9), expected);
    EngineOptions options = options_with("emu:clock=virtual");
    options.cache_bytes = cache_for(path, 2);
    options.cache = {.rules = {.cpu_share = 0}};
    const auto cached = make_engine(describe(path), options);
    ASSERT_NE(cached, nullptr);
    ASSERT_NE(cached->cache(), nullptr);
    EXPECT_EQ(cached->cache()->core().slots(0).n_slots(), 2);
    EXPECT_EQ(prompt_and_decode(*cached, 9), expected);
    EXPECT_GT(cached->cache()->core().total_counts().uploads, 0U);
    // Where the device has no kernel for it, the CPU computes them.
    options.device = fmt::format("emu:clock=virtual,refuse_type={}", ggml_type_name(type));
    const auto refused = make_engine(describe(path), options);
    ASSERT_NE(refused, nullptr);
    EXPECT_EQ(refused->cache(), nullptr);
    EXPECT_EQ(prompt_and_decode(*refused, 9), expected);
    ++n_computed;
  }
  // F32, F16, BF16, MXFP4, NVFP4, five old quants, five K quants, two ternary ones, and the
  // i-quants: three, and five more that need an importance matrix.
  EXPECT_GE(n_computed, kSanitized ? 20 : 24);
}

// Of two groups one may be refused: the other one has slots.
TEST(DeviceEngine, ARefusedTypeLeavesTheOthersTheirSlots) {
  const TemporaryFolder folder;
  const auto path = folder / "two.gguf";
  ASSERT_TRUE(engine::write_random_model(
      {.n_layer = 4, .n_vocab = kVocabulary, .odd_expert_type = GGML_TYPE_Q8_0}, path));
  const auto expected = prompt_and_decode(*make_engine(describe(path), options_with("")), 9);
  EngineOptions options = options_with("emu:clock=virtual,refuse_type=q8_0");
  options.cache_bytes = half_cache(path);
  options.cache = {.rules = {.cpu_share = 0}};
  const auto engine = make_engine(describe(path), options);
  ASSERT_NE(engine, nullptr);
  ASSERT_NE(engine->cache(), nullptr);
  EXPECT_TRUE(engine->cache()->serves(0));
  EXPECT_FALSE(engine->cache()->serves(1));
  EXPECT_EQ(prompt_and_decode(*engine, 9), expected);
}

TEST(DeviceEngine, PromptsInSeveralUbatchesAreTheSameBits) {
  EngineOptions options = options_with("");
  options.context.n_ubatch = 64;
  const auto alone = make_engine(describe(model_of("qwen3moe")), options);
  options.device = "emu";
  const auto engine = make_engine(describe(model_of("qwen3moe")), options);
  EXPECT_EQ(prompt_and_decode(*engine, 200), prompt_and_decode(*alone, 200));
}

TEST(DeviceEngine, WaitsOncePerMoeLayerAndOnceForLogits) {
  const auto engine = make_engine(describe(model_of("qwen3moe")), options_with("emu"));
  ASSERT_NE(engine, nullptr);
  prompt_and_decode(*engine, 20);
  for (const int32_t id : some_ids(10, 5)) {
    engine->device()->reset_counters();
    decode(*engine, as_batch({&id, 1}, true, engine->next_position(0)));
    EXPECT_EQ(engine->device()->counters().n_waits, kLayers + 1);
  }
  engine->device()->reset_counters();
  auto prompt = as_batch(some_ids(40, 6), false, engine->next_position(0));
  prompt.back().want_logits = false;
  ASSERT_TRUE(engine->decode(prompt));
  // Without logits nothing behind the last layer's keys and values is computed, and the last wait
  // is for whether the numbers are numbers.
  EXPECT_EQ(engine->device()->counters().n_waits, kLayers);
}

TEST(DeviceEngine, RoutingIsReportedAsOnTheCpu) {
  using Routed = std::map<int64_t, std::vector<int32_t>>;
  const auto routed_with = [](const std::string& device, std::optional<int64_t> n_gpu_layers) {
    Routed routed;
    EngineOptions options = options_with(device, n_gpu_layers);
    options.observe_routing = [&](int64_t layer, std::span<const int32_t> ids, int64_t) {
      routed[layer].insert(routed[layer].end(), ids.begin(), ids.end());
    };
    const auto engine = make_engine(describe(model_of("qwen3moe")), options);
    prompt_and_decode(*engine, 33);
    return routed;
  };
  const Routed expected = routed_with("", std::nullopt);
  EXPECT_EQ(routed_with("emu", std::nullopt), expected);
  EXPECT_EQ(routed_with("emu", 2), expected);
}

TEST(DeviceEngine, VirtualTimesAreRepeatable) {
  const auto run = [] {
    const auto engine =
        make_engine(describe(model_of("qwen3moe")), options_with("emu:clock=virtual"));
    std::vector<double> times_us;
    decode(*engine, as_batch(some_ids(20, 1), false));
    for (const int32_t id : some_ids(5, 2)) {
      decode(*engine, as_batch({&id, 1}, true, engine->next_position(0)));
      times_us.push_back(engine->device()->now_us());
    }
    return times_us;
  };
  const auto first = run();
  EXPECT_EQ(run(), first);
  EXPECT_GT(first.front(), 0);
}

TEST(DeviceEngine, ASlowCpuAndASlowLinkShowInTheVirtualTime) {
  const auto token_us = [](const std::string& device) {
    const auto engine = make_engine(describe(model_of("qwen3moe")), options_with(device));
    const int32_t id = 1;
    decode(*engine, as_batch({&id, 1}, true));
    const double before_us = engine->device()->now_us();
    decode(*engine, as_batch({&id, 1}, true, 1));
    return engine->device()->now_us() - before_us;
  };
  // One token routes 4 of 16 experts in each of 3 layers to the CPU. An expert is three matrices of
  // 256 x 128 values in Q4_0: 18 bytes for 32 of them.
  const double expert_bytes = 3.0 * 256 * 128 / 32 * 18;
  const double cpu_bytes = kLayers * 4 * expert_bytes;
  const double fast_us = token_us("emu:clock=virtual,cpu_gbps=20");
  const double slow_us = token_us("emu:clock=virtual,cpu_gbps=10");
  EXPECT_NEAR(slow_us - fast_us, cpu_bytes / 10e3 - cpu_bytes / 20e3, 1e-6);
  // Each copy waits out the latency: 4 inputs and the hidden state, ids, x and results of each
  // layer, the logits; each of the 4 graphs is launched once.
  const double quick_us = token_us("emu:clock=virtual,us=0");
  const double late_us = token_us("emu:clock=virtual,us=100");
  EXPECT_NEAR(late_us - quick_us, 100.0 * (5 + 3 * kLayers + 1 + 4), 1e-6);
}

TEST(DeviceEngine, TheProfileHasAllLanes) {
  device::Profile profile;
  EngineOptions options = options_with("emu:clock=virtual");
  options.profile = &profile;
  const auto engine = make_engine(describe(model_of("qwen3moe")), options);
  prompt_and_decode(*engine, 10);
  std::map<device::Track, int> n_by_track;
  for (const auto& entry : profile.entries()) {
    ++n_by_track[entry.track];
    EXPECT_GE(entry.duration_us, 0);
  }
  EXPECT_GT(n_by_track[device::Track::kCompute], 0);
  EXPECT_GT(n_by_track[device::Track::kCpuLane], 0);
  EXPECT_GT(n_by_track[device::Track::kHost], 0);
}

TEST(DeviceEngine, RefusesWhatCannotBe) {
  const auto expect_error = [](const std::string& device, const std::string& message) {
    const auto engine =
        engine::Engine::create(describe(model_of("qwen3moe")), options_with(device));
    ASSERT_FALSE(engine) << device;
    EXPECT_THAT(engine.error().message, HasSubstr(message));
  };
  expect_error("Vulkan17", "Vulkan17");
  expect_error("emu:mib=1", "free");
  expect_error("emu:gbps=fast", "gbps");
  expect_error("emu:nonsense=1", "nonsense");
  expect_error("emu:refuse_allocation=1", "KV cache");
  expect_error("emu:refuse_allocation=2", "dense weights");
  expect_error("emu:refuse_allocation=3", "pair buffers");
}

TEST(DeviceEngine, ADeviceThatFailsEndsWithAnError) {
  for (const std::string fault : {"fail_copy=9", "fail_copy=40", "short_copy=30", "fail_graph=2",
                                  "fail_graph=11", "vanish=5", "vanish=60"}) {
    const auto engine = make_engine(describe(model_of("qwen3moe")), options_with("emu:" + fault));
    ASSERT_NE(engine, nullptr);
    bool failed = false;
    for (int32_t i = 0; i < 20 && !failed; ++i) {
      const int32_t id = i;
      const auto result = engine->decode(as_batch({&id, 1}, true, engine->next_position(0)));
      failed = !result;
      if (failed) {
        EXPECT_EQ(result.error().code, ErrorCode::kDevice) << fault;
      }
    }
    EXPECT_TRUE(failed) << fault;
    // And it stays failed, without hanging.
    const int32_t id = 1;
    EXPECT_FALSE(engine->decode(as_batch({&id, 1}, true, engine->next_position(0))));
  }
}

TEST(DeviceEngine, LateCopiesAndPageableMemoryChangeNothing) {
  const auto alone = make_engine(describe(model_of("qwen3moe")), options_with(""));
  const auto expected = prompt_and_decode(*alone, 20);
  for (const std::string fault : {"late_us=300", "late_us=300,late_seed=2", "refuse_pinned=1"}) {
    const auto engine = make_engine(describe(model_of("qwen3moe")), options_with("emu:" + fault));
    ASSERT_NE(engine, nullptr);
    EXPECT_EQ(prompt_and_decode(*engine, 20), expected) << fault;
  }
}

TEST(Segments, CutAtMoeLayers) {
  model::ModelSpec spec;
  spec.n_layer = 4;
  spec.n_layer_dense = 1;
  spec.router.n_expert = 8;
  const auto segments = engine::cut_segments(spec, 0);
  ASSERT_EQ(segments.size(), 4U);
  EXPECT_EQ(segments[0].first_layer, 0);
  EXPECT_EQ(segments[0].end_layer, 2);
  EXPECT_EQ(segments[0].combines, -1);
  EXPECT_EQ(segments[0].routes, 1);
  EXPECT_EQ(segments[3].first_layer, 4);
  EXPECT_EQ(segments[3].end_layer, 4);
  EXPECT_EQ(segments[3].combines, 3);
  EXPECT_EQ(segments[3].routes, -1);
  EXPECT_EQ(engine::cut_segments(spec, 3).size(), 2U);
}

TEST(CpuLane, RunsJobsInOrderAndGivesTheirStatus) {
  engine::CpuLane lane;
  int n = 0;
  for (int i = 0; i < 1000; ++i) {
    auto job = [&]() -> Status {
      ++n;
      return {};
    };
    ASSERT_TRUE(lane.run(job));
    ASSERT_EQ(n, i + 1);
  }
  auto failing = []() -> Status { return make_error(ErrorCode::kDevice, "no"); };
  EXPECT_FALSE(lane.run(failing));
  auto unfinished = [&]() -> Status {
    ++n;
    return {};
  };
  lane.start(unfinished);  // the destructor waits for it
}

}  // namespace
}  // namespace hotset::test
