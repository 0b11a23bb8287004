#include "hotset/engine/weights/random_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <string>
#include <vector>

#include "hotset/base/temporary_folder.h"
#include "hotset/engine/weights/loaded_model.h"
#include "hotset/engine/weights/weights.h"
#include "hotset/model/gguf_file.h"

namespace hotset::engine {
namespace {

using testing::HasSubstr;

// While one of these lives, no file can grow beyond a size: a disk that is full.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t n_bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = n_bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
};

class RandomModelTest : public testing::Test {
 protected:
  std::filesystem::path path() const { return folder_ / "model.gguf"; }
  size_t n_files() const {
    size_t n = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      ++n;
    }
    return n;
  }
  // That it is refused, and nothing is left behind.
  void expect_error(const RandomModelOptions& options, const std::string& message) {
    const auto status = write_random_model(options, path());
    ASSERT_FALSE(status) << message;
    EXPECT_THAT(status.error().message, HasSubstr(message));
    EXPECT_EQ(n_files(), 0U);
  }

  test::TemporaryFolder folder_;
};

RandomModelOptions small() {
  return {.n_layer = 1,
          .n_embd = 256,
          .n_head = 4,
          .n_head_kv = 4,
          .head_dim = 64,
          .n_expert = 2,
          .n_expert_used = 1,
          .n_ff_expert = 256,
          .n_ff = 256,
          .n_vocab = 8};
}

TEST_F(RandomModelTest, EveryArchitectureAndTypeIsWrittenOrRefused) {
  for (const std::string_view architecture : architecture_names()) {
    RandomModelOptions options = small();
    options.architecture = architecture;
    const auto status = write_random_model(options, path());
    ASSERT_TRUE(status) << status.error().message;
    const auto description = describe_model(path());
    ASSERT_TRUE(description) << description.error().message;
    EXPECT_EQ(description->spec.architecture, architecture);
    std::filesystem::remove(path());
  }
  int n_written = 0;
  for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
    const auto type = static_cast<ggml_type>(i);
    if (ggml_type_size(type) == 0) continue;
    SCOPED_TRACE(ggml_type_name(type));
    RandomModelOptions options = small();
    options.expert_type = options.dense_type = type;
    const auto status = write_random_model(options, path());
    if (!status) {
      EXPECT_THAT(status.error().message, HasSubstr(ggml_type_name(type)));
      EXPECT_EQ(n_files(), 0U);
      continue;
    }
    EXPECT_TRUE(describe_model(path()));
    std::filesystem::remove(path());
    ++n_written;
  }
  EXPECT_GE(n_written, 13);  // F32, F16, BF16, five old and five K quants at the least
}

TEST_F(RandomModelTest, RefusesNonsense) {
  const auto with = [](auto change) {
    RandomModelOptions options = small();
    change(options);
    return options;
  };
  using Options = RandomModelOptions;
  expect_error(with([](Options& o) { o.architecture = ""; }), "general.architecture");
  expect_error(with([](Options& o) { o.n_layer = -1; }), "layers: found -1, expected 1 to");
  expect_error(with([](Options& o) { o.n_layer = 1025; }), "block_count");
  expect_error(with([](Options& o) { o.n_embd = 0; }), "embedding: found 0");
  expect_error(with([](Options& o) { o.n_head = 0; }), "heads: found 0");
  expect_error(with([](Options& o) { o.n_head_kv = 3; }), "attention.head_count_kv: found 3");
  expect_error(with([](Options& o) { o.head_dim = 7; }), "rope.dimension_count: found 7");
  expect_error(with([](Options& o) { o.n_expert_used = 3; }), "expert_used_count: found 3");
  expect_error(with([](Options& o) { o.n_ff_expert = 100; }), "rows of 100 values, expected");
  expect_error(with([](Options& o) { o.n_vocab = 0; }), "vocab: found 0");
  expect_error(with([](Options& o) { o.expert_type = GGML_TYPE_I32; }), "type: found i32");
  expect_error(with([](Options& o) { o.dense_type = GGML_TYPE_Q8_1; }), "type: found q8_1");
  expect_error(with([](Options& o) { o.tokenizer_from = "/nowhere/model.gguf"; }),
               "/nowhere/model.gguf: cannot open");
}

TEST_F(RandomModelTest, RefusesWhatNoDiskHolds) {
  RandomModelOptions options = small();
  options.n_layer = 1024;
  options.n_embd = options.n_ff_expert = 1 << 20;
  options.n_expert = 1 << 16;
  expect_error(options, "GiB are free");
}

TEST_F(RandomModelTest, ReplacesAFileOnlyByAWholeOne) {
  ASSERT_TRUE(write_random_model(small(), path()));
  RandomModelOptions options = small();
  options.n_vocab = 20000;
  {
    const FileSizeLimit limit(1 << 20);
    const auto status = write_random_model(options, path());
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kIo);
    EXPECT_THAT(status.error().message, HasSubstr("cannot write: File too large"));
  }
  EXPECT_EQ(n_files(), 1U);
  EXPECT_EQ(describe_model(path())->spec.n_vocab, 8);
  options.n_vocab = 16;
  ASSERT_TRUE(write_random_model(options, path()));
  EXPECT_EQ(describe_model(path())->spec.n_vocab, 16);
  EXPECT_EQ(n_files(), 1U);
}

TEST_F(RandomModelTest, RefusesPlacesWhereNoFileCanBe) {
  const auto refused = [&](const std::filesystem::path& to, const std::string& message) {
    const auto status = write_random_model(small(), to);
    ASSERT_FALSE(status);
    EXPECT_THAT(status.error().message, HasSubstr(message));
  };
  refused(folder_.path(), "found a folder or a special file");
  refused("/dev/null", "found a folder or a special file");
  refused(folder_ / "absent" / "model.gguf", "cannot create");
  refused("", "expected the name of a file");
  EXPECT_TRUE(std::filesystem::exists("/dev/null"));
  EXPECT_EQ(n_files(), 0U);
}

// Large tensors are written in batches; the bytes do not show where they were cut.
TEST_F(RandomModelTest, TensorsLargerThanABatchAreWhole) {
  RandomModelOptions options = small();
  options.n_vocab = 70001;  // more than 64 pieces of 2^18 values, and no whole number of them
  ASSERT_TRUE(write_random_model(options, path()));
  const auto file = model::GgufFile::open(path());
  ASSERT_TRUE(file) << file.error().message;
  const model::TensorInfo* embedding = file->find_tensor("token_embd.weight");
  ASSERT_NE(embedding, nullptr);
  EXPECT_EQ(embedding->ne[1], 70001);
  const auto bytes = file->tensor_bytes(*embedding);
  // No row is left empty.
  const size_t row_bytes = ggml_row_size(embedding->type, 256);
  for (size_t row = 0; row < 70001; row += 997) {
    const auto begin = bytes.begin() + static_cast<ptrdiff_t>(row * row_bytes);
    EXPECT_TRUE(std::any_of(begin, begin + static_cast<ptrdiff_t>(row_bytes),
                            [](uint8_t byte) { return byte != 0; }));
  }
  EXPECT_TRUE(describe_model(path()));
}

}  // namespace
}  // namespace hotset::engine
