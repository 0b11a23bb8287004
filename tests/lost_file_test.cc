// A model file that is cut while the engine works: what needs a weight that is lost fails and names
// the file, everything else gives the same bits as before, and nothing is ever computed with zeros.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "hotset/base/log.h"
#include "hotset/base/temporary_folder.h"
#include "hotset/engine/run/engine.h"
#include "hotset/engine/weights/random_model.h"
#include "hotset/model/gguf_testing.h"
#include "tests/engine_fixture.h"

namespace hotset::test {
namespace {

using engine::EngineOptions;
using testing::HasSubstr;

constexpr int32_t kVocabulary = 64;

class LostFile : public testing::TestWithParam<EngineOptions> {
 protected:
  void SetUp() override {
    const engine::RandomModelOptions model{.n_layer = 2,
                                           .n_embd = 64,
                                           .n_head = 2,
                                           .n_head_kv = 1,
                                           .head_dim = 32,
                                           .n_expert = 16,
                                           .n_expert_used = 2,
                                           .n_ff_expert = 64,
                                           .n_vocab = kVocabulary,
                                           .expert_type = GGML_TYPE_F32,
                                           .dense_type = GGML_TYPE_F32,
                                           .seed = 4};
    const auto status = engine::write_random_model(model, path());
    ASSERT_TRUE(status) << status.error().message;
    // 16 KiB for each expert of the last tensor.
    const auto made = model::GgufFile::open(path());
    ASSERT_TRUE(made) << made.error().message;
    model::GgufBytes file(*made);
    const std::string last = "blk.1.ffn_down_exps.weight";
    model::TensorEntry entry = file.tensor(last);
    file.remove_tensor(last);
    file.add(std::move(entry)).write(path());
    engine_ = make_engine(describe(path()), GetParam());
    ASSERT_NE(engine_, nullptr);
    for (int32_t id = 0; id < kVocabulary; ++id) {
      engine_->forget(0, 0, 256);
      before_.push_back(decode(*engine_, as_batch({&id, 1}, true)));
    }
    set_log_sink([this](LogLevel level, std::string_view message) {
      if (level == LogLevel::kWarning) warnings_.emplace_back(message);
    });
  }
  void TearDown() override { set_log_sink({}); }

  std::filesystem::path path() const { return folder_ / "model.gguf"; }
  // So that the last `n_experts` experts are lost.
  void cut(size_t n_experts) const {
    std::filesystem::resize_file(path(),
                                 std::filesystem::file_size(path()) - n_experts * 64 * 64 * 4);
  }
  // How many tokens fail; the others give what they gave before.
  int n_failed() {
    int n = 0;
    for (int32_t id = 0; id < kVocabulary; ++id) {
      engine_->forget(0, 0, 256);
      const auto result = engine_->decode(as_batch({&id, 1}, true));
      if (result) {
        EXPECT_TRUE(std::ranges::equal(result->logits, before_[static_cast<size_t>(id)])) << id;
        continue;
      }
      ++n;
      EXPECT_EQ(result.error().code, ErrorCode::kIo);
      EXPECT_THAT(result.error().message, HasSubstr("model.gguf: found "));
      EXPECT_EQ(engine_->next_position(0), 0);
    }
    return n;
  }

  TemporaryFolder folder_;
  std::unique_ptr<engine::Engine> engine_;
  std::vector<std::vector<float>> before_;
  std::vector<std::string> warnings_;
};

TEST_P(LostFile, FailsWhatNeedsItAndNothingElse) {
  EXPECT_EQ(n_failed(), 0);
  cut(4);
  const int n_first = n_failed();
  EXPECT_GT(n_first, 0);
  EXPECT_LT(n_first, kVocabulary);
  EXPECT_EQ(warnings_.size(), 1U) << testing::PrintToString(warnings_);
  EXPECT_EQ(n_failed(), n_first);
  cut(4);
  const int n_second = n_failed();
  EXPECT_GT(n_second, n_first);
  EXPECT_EQ(warnings_.size(), 2U) << testing::PrintToString(warnings_);
}

TEST_P(LostFile, FailsEverythingWhereAllIsLost) {
  std::filesystem::resize_file(path(), 0);
  EXPECT_EQ(n_failed(), GetParam().device.empty() ? kVocabulary : n_failed());
  EXPECT_FALSE(engine_->save_sequence(0));
}

INSTANTIATE_TEST_SUITE_P(Table, LostFile,
                         testing::Values(EngineOptions{.n_threads = 1,
                                                       .context = {.n_ctx = 256},
                                                       .load = {.repack = false}},
                                         EngineOptions{.n_threads = 2,
                                                       .context = {.n_ctx = 256},
                                                       .load = {.repack = false},
                                                       .device = "emu:clock=virtual",
                                                       .cache_bytes = Bytes{600'000}}),
                         [](const auto& p) { return p.param.device.empty() ? "cpu" : "device"; });

TEST(LostFileTest, WhatIsInMemoryIsNotAffected) {
  const TemporaryFolder folder;
  const auto path = folder / "model.gguf";
  ASSERT_TRUE(engine::write_random_model({.n_layer = 2, .n_vocab = kVocabulary}, path));
  const auto engine = make_engine(
      describe(path), {.n_threads = 1,
                       .context = {.n_ctx = 256},
                       .load = {.load_mode = engine::LoadMode::kPinned, .repack = false}});
  ASSERT_NE(engine, nullptr);
  const std::vector<int32_t> ids = {1, 2, 3};
  const auto before = decode(*engine, as_batch(ids, true));
  std::filesystem::resize_file(path, 0);
  engine->forget(0, 0, 256);
  EXPECT_EQ(decode(*engine, as_batch(ids, true)), before);
}

TEST(LostFileTest, LoadingNamesTheFile) {
  const TemporaryFolder folder;
  const auto path = folder / "model.gguf";
  ASSERT_TRUE(engine::write_random_model({.n_layer = 2, .n_vocab = kVocabulary}, path));
  for (const auto mode : {engine::LoadMode::kMmap, engine::LoadMode::kPinned}) {
    auto description = describe(path);
    const auto n_bytes = std::filesystem::file_size(path);
    std::filesystem::resize_file(path, n_bytes / 2);
    const auto engine = engine::Engine::create(
        std::move(description),
        {.n_threads = 1, .context = {.n_ctx = 256}, .load = {.load_mode = mode, .repack = false}});
    ASSERT_FALSE(engine);
    EXPECT_EQ(engine.error().code, ErrorCode::kIo);
    EXPECT_THAT(engine.error().message, HasSubstr("model.gguf: found "));
    ASSERT_TRUE(engine::write_random_model({.n_layer = 2, .n_vocab = kVocabulary}, path));
  }
}

}  // namespace
}  // namespace hotset::test
