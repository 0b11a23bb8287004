// The golden logits of shared/golden/logits, and what a model computes for the same tokens.
#ifndef TESTS_GOLDEN_H_
#define TESTS_GOLDEN_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "hotset/device/ggml_runtime.h"
#include "hotset/engine/run/engine.h"
#include "hotset/engine/run/sampler.h"
#include "tests/engine_fixture.h"
#include "tests/test_files.h"
#include "tests/tolerances.h"

namespace hotset::test {

struct Golden {
  std::vector<int32_t> prompt;
  std::vector<int32_t> greedy;
  std::map<std::string, std::vector<int32_t>> routing;
  std::vector<float> logits;
};

inline Golden read_golden(const std::filesystem::path& folder, const std::string& name) {
  std::ifstream in(folder / (name + ".json"));
  const auto json = nlohmann::json::parse(in);
  Golden golden{.prompt = json["prompt"],
                .greedy = json["greedy"],
                .routing = json["routing"].get<std::map<std::string, std::vector<int32_t>>>(),
                .logits = {}};
  std::ifstream rows(folder / (name + ".logits.f32"), std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(rows)), std::istreambuf_iterator<char>());
  golden.logits.resize(bytes.size() / sizeof(float));
  std::memcpy(golden.logits.data(), bytes.data(), bytes.size());
  return golden;
}

struct GoldenRun {
  std::vector<float> logits;
  std::vector<int32_t> greedy;
  std::map<std::string, std::vector<int32_t>> routing;
};

// What the golden's README describes: the prompt, then greedy tokens, a row after each.
inline GoldenRun run_golden(engine::ModelDescription description, const Golden& golden,
                            const std::string& device = "", Bytes cache = {}, double share = 0.5,
                            const std::function<void(engine::EngineOptions&)>& change = {}) {
  GoldenRun run;
  engine::EngineOptions options{.n_threads = 1,
                                .context = {.n_ctx = 256,
                                            .n_outputs = 512,
                                            .flash_attention = engine::FlashAttention::kOff,
                                            .key_type = GGML_TYPE_F32,
                                            .value_type = GGML_TYPE_F32},
                                .load = {.repack = false},
                                .device = device,
                                .observe_routing =
                                    [&run](int64_t layer, std::span<const int32_t> ids, int64_t) {
                                      auto& all = run.routing[std::to_string(layer)];
                                      all.insert(all.end(), ids.begin(), ids.end());
                                    },
                                .cache_bytes = cache,
                                .cache = {.rules = {.cpu_share = share}}};
  if (change) change(options);
  const auto engine = make_engine(std::move(description), options);
  if (engine == nullptr) return run;
  std::vector<float> rows = decode(*engine, as_batch(golden.prompt, true));
  const auto n_vocab = static_cast<size_t>(engine->spec().n_vocab);
  for (size_t i = 0;; ++i) {
    run.logits.insert(run.logits.end(), rows.begin(), rows.end());
    if (i == golden.greedy.size() || rows.empty()) break;
    const int32_t id = engine::argmax(std::span(rows).last(n_vocab));
    run.greedy.push_back(id);
    // The golden's own token, so that a mutation is compared on the same text.
    rows = decode(*engine, as_batch({&golden.greedy[i], 1}, true, engine->next_position(0)));
  }
  return run;
}

// Whether the build of ggml's CPU backend that computes here uses these instructions.
inline bool cpu_has(std::string_view instructions) {
  HOTSET_CHECK(device::init_ggml().has_value());
  const auto get = device::proc_address<ggml_backend_get_features_t>(device::cpu_device(),
                                                                     "ggml_backend_get_features");
  if (get == nullptr) return false;
  for (const ggml_backend_feature* f = get(ggml_backend_dev_backend_reg(device::cpu_device()));
       f->name != nullptr; ++f) {
    if (f->name == instructions) return f->value == std::string_view("1");
  }
  return false;
}

// How far the CPU's logits may be from the goldens.
inline double cpu_logits_nmse() {
  if (cpu_has("AVX512")) return kCpuLogitsNmse;
  return cpu_has("AVX") ? kAvxLogitsNmse : kOldCpuLogitsNmse;
}

// Share of positions that chose other experts, whatever their order.
inline double routing_difference(const GoldenRun& run, const Golden& golden, size_t k) {
  size_t n_positions = 0;
  size_t n_different = 0;
  const auto chosen = [&](const std::vector<int32_t>& ids, size_t i) {
    const auto begin = ids.begin() + static_cast<ptrdiff_t>(i);
    return std::set<int32_t>(begin, begin + static_cast<ptrdiff_t>(k));
  };
  for (const auto& [layer, expected] : golden.routing) {
    const auto found = run.routing.find(layer);
    if (found == run.routing.end() || found->second.size() != expected.size()) return 1;
    for (size_t i = 0; i < expected.size(); i += k, ++n_positions) {
      if (chosen(expected, i) != chosen(found->second, i)) ++n_different;
    }
  }
  return static_cast<double>(n_different) / static_cast<double>(n_positions);
}

// A test per architecture that has goldens; skips where they are absent.
class LogitsGolden : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    folder_ = shared_dir("golden/logits");
    if (folder_.empty()) GTEST_SKIP() << "HOTSET_SHARED_DIR has no golden/logits";
    golden_ = read_golden(folder_, GetParam());
  }
  engine::ModelDescription description() const {
    return describe(folder_ / (GetParam() + ".gguf"));
  }

  std::filesystem::path folder_;
  Golden golden_;
};

inline auto golden_architectures() {
  return testing::Values("qwen3moe", "qwen2moe", "olmoe", "llama", "gpt-oss", "glm4moe",
                         "granitemoe", "deepseek2", "dots1");
}

// The architecture as a part of a test's name.
inline std::string golden_test_name(const testing::TestParamInfo<std::string>& architecture) {
  std::string name = architecture.param;
  std::ranges::replace(name, '-', '_');
  return name;
}

}  // namespace hotset::test

#endif  // TESTS_GOLDEN_H_
