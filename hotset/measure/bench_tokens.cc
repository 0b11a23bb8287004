#include "hotset/measure/bench_tokens.h"
#include "hotset/base/text_file.h"
#include "hotset/engine/weights/model_tokenizer.h"

#include <filesystem>

#include "hotset/base/log.h"
#include "hotset/measure/bench_text.h"
#include "hotset/measure/model_options.h"

namespace hotset::measure {

Result<BenchTokens> BenchTokens::create(const engine::ModelDescription& model,
                                        const BenchTokensOptions& options) {
  BenchTokens tokens;
  tokens.n_vocab_ = model.spec.n_vocab;
  tokens.seed_ = options.random_seed;
  tokens.name_ = "random";
  tokens.rewind();
  if (options.random) return tokens;
  auto tokenizer = engine::model_tokenizer(model);
  if (!tokenizer) {
    if (tokenizer.error().code != ErrorCode::kNotFound || !options.text_path.empty()) {
      return std::unexpected(tokenizer.error());
    }
    log_warning("{}; measuring random tokens, which route unlike text", tokenizer.error().message);
    return tokens;
  }
  std::string text(bench_texts().front().content);
  tokens.name_ = "text";
  if (!options.text_path.empty()) {
    HOTSET_TRY(text, read_text(options.text_path));
    tokens.name_ += " " + std::filesystem::path(options.text_path).filename().string();
  }
  HOTSET_TRY(tokens.begin_, tokenizer->encode("", {.add_bos = true}));
  HOTSET_TRY(tokens.ids_, tokenizer->encode(text, {}));
  if (tokens.ids_.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "{}: found no text, expected some to measure",
                      options.text_path);
  }
  return tokens;
}

void BenchTokens::rewind() {
  next_ = 0;
  random_ = Random(seed_);
}

std::vector<int32_t> BenchTokens::take(int32_t n) {
  std::vector<int32_t> taken;
  taken.reserve(n);
  for (const int32_t id : begin_) {
    if (std::ssize(taken) < n) taken.push_back(id);
  }
  while (std::ssize(taken) < n) {
    if (ids_.empty()) {
      taken.push_back(static_cast<int32_t>(random_.below(static_cast<uint64_t>(n_vocab_))));
      continue;
    }
    if (next_ == ids_.size()) {
      next_ = 0;
      was_repeated_ = true;
    }
    taken.push_back(ids_[next_++]);
  }
  return taken;
}

}  // namespace hotset::measure
