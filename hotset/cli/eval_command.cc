#include "hotset/cli/eval_command.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "hotset/base/clock.h"
#include "hotset/base/interrupt.h"
#include "hotset/base/log.h"
#include "hotset/base/text_file.h"
#include "hotset/cli/command.h"
#include "hotset/cli/run_command.h"
#include "hotset/engine/run/default_context.h"
#include "hotset/engine/run/sampler.h"
#include "hotset/engine/weights/model_tokenizer.h"
#include "hotset/measure/engine_session.h"
#include "hotset/text/tokenizer.h"

namespace hotset::cli {
namespace {

struct FileClose {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using FilePtr = std::unique_ptr<std::FILE, FileClose>;

Result<FilePtr> create_file(const std::string& path) {
  FilePtr file(std::fopen(path.c_str(), "wb"));
  if (!file) {
    return make_error(ErrorCode::kIo, "{}: cannot create: {}", path, std::strerror(errno));
  }
  return file;
}

Status write_all(std::FILE* file, const std::string& path, const void* data, size_t n_bytes) {
  if (std::fwrite(data, 1, n_bytes, file) == n_bytes && std::fflush(file) == 0) return {};
  return make_error(ErrorCode::kIo, "{}: cannot write: {}", path, std::strerror(errno));
}

// -log p(token) under the softmax of `logits`, in double: sums over large vocabularies.
double negative_log_likelihood(std::span<const float> logits, int32_t token) {
  const double max = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - max);
  return std::log(sum) + max - logits[token];
}

class Evaluation {
 public:
  explicit Evaluation(const EvalOptions& options) : options_(options) {}

  Status start();
  Status evaluate();
  Status finish() { return session_->finish(); }
  Status report() const;

 private:
  Status read_tokens(const engine::ModelDescription& model);
  Status evaluate_context(std::span<const int32_t> ids);
  Status generate();
  Result<std::span<const float>> step(std::span<const engine::BatchToken> batch);

  const EvalOptions& options_;
  std::optional<measure::EngineSession> session_;
  FilePtr logits_file_;
  FilePtr routing_file_;
  std::map<int64_t, std::vector<int32_t>> routing_;
  std::vector<int32_t> ids_;
  std::vector<int32_t> generated_;
  std::vector<float> last_row_;
  double nll_ = 0;
  int64_t n_scored_ = 0;
  double elapsed_us_ = 0;
};

Status Evaluation::start() {
  if (options_.tokens.has_value() == options_.text_file.has_value()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "expected one of --tokens IDS and -f FILE, found {}",
                      options_.tokens ? "both" : "none");
  }
  if (options_.n_generate < 0) {
    return make_error(ErrorCode::kInvalidArgument, "--generate: found {}, expected at least 0",
                      options_.n_generate);
  }
  HOTSET_TRY(engine::EngineOptions engine_flags, engine_options(options_.model));
  engine_flags.context.n_outputs = engine_flags.context.n_ubatch;
  engine_flags.context.n_sequences = 1;
  // Perplexity depends on it, so it must not depend on how much memory is free.
  engine_flags.context.most_default_context = engine::kLeastContext;
  if (!options_.routing_out.empty()) {
    engine_flags.observe_routing = [this](int64_t layer, std::span<const int32_t> ids, int64_t) {
      auto& all = routing_[layer];
      all.insert(all.end(), ids.begin(), ids.end());
    };
  }
  HOTSET_TRY(session_, measure::EngineSession::start(options_.model, std::move(engine_flags),
                                                     [&](const engine::ModelDescription& model) {
                                                       return read_tokens(model);
                                                     }));
  if (!options_.logits_out.empty()) {
    HOTSET_TRY(logits_file_, create_file(options_.logits_out));
  }
  if (!options_.routing_out.empty()) {
    HOTSET_TRY(routing_file_, create_file(options_.routing_out));
  }
  return {};
}

Status Evaluation::read_tokens(const engine::ModelDescription& model) {
  if (options_.tokens) {
    HOTSET_TRY(ids_, parse_ids("--tokens", *options_.tokens));
    // All at once, before any of them is looked up in the logits of the one before.
    return check_ids("--tokens", ids_, model.spec.n_vocab);
  }
  HOTSET_TRY(const std::string text, read_text(*options_.text_file));
  HOTSET_TRY(const text::Tokenizer tokenizer, engine::model_tokenizer(model));
  HOTSET_TRY(ids_, tokenizer.encode(text, {.add_bos = true}));
  if (ids_.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "{}: found no text to evaluate",
                      *options_.text_file);
  }
  return check_ids(*options_.text_file, ids_, model.spec.n_vocab);
}

Result<std::span<const float>> Evaluation::step(std::span<const engine::BatchToken> batch) {
  HOTSET_TRY(const engine::DecodeResult result, session_->decode(batch));
  if (logits_file_) {
    HOTSET_RETURN_IF_ERROR(write_all(logits_file_.get(), options_.logits_out, result.logits.data(),
                                     result.logits.size_bytes()));
  }
  const auto n_vocab = static_cast<size_t>(session_->engine().spec().n_vocab);
  const auto last = result.logits.last(n_vocab);
  last_row_.assign(last.begin(), last.end());
  return result.logits;
}

Status Evaluation::evaluate_context(std::span<const int32_t> ids) {
  session_->engine().forget(0, 0, session_->engine().n_ctx());
  const auto n_vocab = static_cast<size_t>(session_->engine().spec().n_vocab);
  const auto n_ubatch = static_cast<size_t>(session_->engine().n_ubatch());
  std::vector<engine::BatchToken> batch;
  for (size_t begin = 0; begin < ids.size(); begin += n_ubatch) {
    batch.clear();
    const size_t end = std::min(ids.size(), begin + n_ubatch);
    for (size_t i = begin; i < end; ++i) {
      batch.push_back({.token = ids[i], .position = static_cast<int32_t>(i), .want_logits = true});
    }
    HOTSET_TRY(const std::span<const float> logits, step(batch));
    for (size_t i = begin; i < end && i + 1 < ids.size(); ++i) {
      nll_ += negative_log_likelihood(logits.subspan((i - begin) * n_vocab, n_vocab), ids[i + 1]);
      ++n_scored_;
    }
  }
  return {};
}

Status Evaluation::generate() {
  for (int32_t i = 0; i < options_.n_generate; ++i) {
    const engine::BatchToken token{.token = engine::argmax(last_row_),
                                   .position = session_->engine().next_position(0),
                                   .want_logits = true};
    generated_.push_back(token.token);
    HOTSET_RETURN_IF_ERROR(step({&token, 1}));
  }
  return {};
}

Status Evaluation::evaluate() {
  const InterruptScope scope;
  const double start_us = steady_clock().now_us();
  const auto n_ctx = static_cast<size_t>(session_->engine().n_ctx());
  for (size_t begin = 0; begin < ids_.size(); begin += n_ctx) {
    HOTSET_RETURN_IF_ERROR(
        evaluate_context(std::span(ids_).subspan(begin, std::min(n_ctx, ids_.size() - begin))));
  }
  HOTSET_RETURN_IF_ERROR(generate());
  elapsed_us_ = steady_clock().now_us() - start_us;
  return {};
}

Status Evaluation::report() const {
  if (!options_.routing_out.empty()) {
    nlohmann::json routing = nlohmann::json::object();
    for (const auto& [layer, ids] : routing_) routing[std::to_string(layer)] = ids;
    const std::string text = routing.dump() + "\n";
    HOTSET_RETURN_IF_ERROR(
        write_all(routing_file_.get(), options_.routing_out, text.data(), text.size()));
  }
  const double perplexity =
      n_scored_ > 0 ? std::exp(nll_ / static_cast<double>(n_scored_)) : std::nan("");
  const double tokens_per_s =
      static_cast<double>(ids_.size() + generated_.size()) * 1e6 / std::max(1.0, elapsed_us_);
  if (options_.json) {
    nlohmann::ordered_json report = {
        {"n_tokens", ids_.size()},      {"n_scored", n_scored_},
        {"perplexity", nullptr},        {"generated", generated_},
        {"tokens_per_s", tokens_per_s}, {"moe_cache", session_->cache_json()}};
    if (n_scored_ > 0) report["perplexity"] = perplexity;
    std::puts(report.dump(2).c_str());
    return {};
  }
  if (n_scored_ > 0) {
    fmt::print("perplexity {:.4f} over {} tokens (contexts of {})\n", perplexity, n_scored_,
               session_->engine().n_ctx());
  }
  if (!generated_.empty()) {
    std::string list;
    for (const int32_t id : generated_) list += fmt::format("{}{}", list.empty() ? "" : ",", id);
    fmt::print("generated {}\n", list);
  }
  log_info("{} tokens, {:.1f} tokens/s", ids_.size() + generated_.size(), tokens_per_s);
  return {};
}

}  // namespace

Status eval(const EvalOptions& options) {
  Evaluation evaluation(options);
  HOTSET_RETURN_IF_ERROR(evaluation.start());
  const Status evaluated = evaluation.evaluate();
  const Status finished = evaluation.finish();
  HOTSET_RETURN_IF_ERROR(evaluated);
  HOTSET_RETURN_IF_ERROR(finished);
  return evaluation.report();
}

}  // namespace hotset::cli
