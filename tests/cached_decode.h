// What the tests of cached decode share: small models, budgets, and one fixed sequence of ubatches.
#ifndef TESTS_CACHED_DECODE_H_
#define TESTS_CACHED_DECODE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "hotset/base/random.h"
#include "hotset/engine/run/engine.h"
#include "hotset/engine/weights/random_model.h"
#include "tests/engine_fixture.h"
#include "tests/test_files.h"

namespace hotset::test {

inline constexpr int64_t kVocabulary = 256;
inline constexpr int64_t kLayers = 3;
inline constexpr int64_t kExperts = 16;  // of a layer

// Under sanitizers everything takes ten times as long, and other things are looked for: a part of a
// matrix is enough.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// All of a matrix's values, or the first `n` under sanitizers.
template <typename T>
std::vector<T> values(std::vector<T> all, size_t n) {
  if (kSanitized) all.resize(std::min(n, all.size()));
  return all;
}

inline std::vector<int32_t> some_ids(size_t n, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> ids(n);
  for (int32_t& id : ids) id = static_cast<int32_t>(random.below(kVocabulary));
  return ids;
}

// One small random model of each architecture, written once.
inline std::filesystem::path model_of(const std::string& architecture) {
  static const TemporaryFolder folder;
  const std::filesystem::path path = folder / (architecture + ".gguf");
  if (!std::filesystem::exists(path)) {
    const auto status = engine::write_random_model(
        {.architecture = architecture, .n_layer = kLayers, .n_vocab = kVocabulary, .seed = 11},
        path);
    EXPECT_TRUE(status) << status.error().message;
  }
  return path;
}

// All experts tensors of a layer, of one expert.
inline Bytes expert_bytes(const std::filesystem::path& path, const std::string& layer = "blk.1.") {
  const auto description = describe(path);
  Bytes total;
  for (const auto& tensor : description.file.tensors()) {
    if (tensor.name.starts_with(layer) && tensor.name.ends_with("_exps.weight")) {
      total += {tensor.n_bytes.count / tensor.ne[2]};
    }
  }
  return total;
}

// The budget that gives a model with one group `n_slots` slots.
inline Bytes budget_for(const std::filesystem::path& path, int64_t n_slots) {
  return expert_bytes(path) * (n_slots + 1) + Bytes{1024};
}

inline engine::EngineOptions cache_options(const std::string& device, Bytes cache) {
  return {.n_threads = 1,
          .context = {.n_ctx = 512},
          .load = {.repack = false},
          .device = device,
          .cache_bytes = cache};
}

// The fixed sequence of ubatches: logits of the last token of each.
inline std::vector<float> run_script(engine::Engine& engine) {
  std::vector<float> logits;
  uint64_t seed = 20;
  std::vector<size_t> sizes = {1, 4, 32, 200};
  sizes.insert(sizes.end(), 40, 1);
  sizes.insert(sizes.end(), {4, 2, 33, 1, 1});
  for (const size_t n : sizes) {
    const auto row = decode(engine, as_batch(some_ids(n, ++seed), false, engine.next_position(0)));
    logits.insert(logits.end(), row.begin(), row.end());
  }
  return logits;
}

inline std::vector<float> script_without_cache(const std::filesystem::path& path) {
  const auto engine = make_engine(describe(path), cache_options("", {}));
  return engine == nullptr ? std::vector<float>() : run_script(*engine);
}

}  // namespace hotset::test

#endif  // TESTS_CACHED_DECODE_H_
