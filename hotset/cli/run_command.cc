#include "hotset/cli/run_command.h"
#include "hotset/base/interrupt.h"
#include "hotset/base/text_file.h"
#include "hotset/measure/engine_session.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>
#include <vector>

#include "hotset/base/clock.h"
#include "hotset/base/log.h"
#include "hotset/cli/command.h"
#include "hotset/engine/weights/model_tokenizer.h"
#include "hotset/text/stream_decoder.h"
#include "hotset/text/tokenizer.h"

namespace hotset::cli {
namespace {

// How and when a generation went.
struct Outcome {
  std::vector<int32_t> prompt_ids;
  std::vector<int32_t> ids;  // generated
  std::string text;
  std::string_view stop;  // length, end, context, interrupted
  double load_us = 0;
  double prompt_us = 0;
  double generate_us = 0;
};

double per_second(size_t n, double us) { return us > 0 ? static_cast<double>(n) * 1e6 / us : 0; }

class Generation {
 public:
  explicit Generation(const RunOptions& options) : options_(options) {}

  Status start();
  Status generate();
  void report() const;
  Status finish() { return session_->finish(); }

 private:
  Status read_prompt(const engine::ModelDescription& model);
  Status emit(int32_t id);
  Status print(std::string_view text);
  Result<int32_t> next(std::span<const engine::BatchToken> batch);

  const RunOptions& options_;
  std::optional<measure::EngineSession> session_;
  std::optional<text::Tokenizer> tokenizer_;
  std::optional<text::StreamDecoder> decoder_;
  std::optional<engine::Sampler> sampler_;
  std::string prompt_;
  uint64_t seed_ = 0;
  Outcome outcome_;
};

Status Generation::start() {
  const int n_prompts =
      (options_.prompt ? 1 : 0) + (options_.prompt_file ? 1 : 0) + (options_.prompt_tokens ? 1 : 0);
  if (n_prompts != 1) {
    return make_error(ErrorCode::kInvalidArgument,
                      "found {} prompts, expected one of -p TEXT, -f FILE and --prompt-tokens IDS",
                      n_prompts);
  }
  HOTSET_TRY(const Sampling sampling, make_sampling(options_));
  seed_ = sampling.seed;
  HOTSET_TRY(sampler_, engine::Sampler::create(sampling.options));
  HOTSET_TRY(engine::EngineOptions engine_flags, engine_options(options_.model));
  engine_flags.context.n_sequences = 1;
  const double start_us = steady_clock().now_us();
  HOTSET_TRY(session_, measure::EngineSession::start(
                           options_.model, engine_flags,
                           [&](const engine::ModelDescription& model) -> Status {
                             HOTSET_RETURN_IF_ERROR(check_logit_bias(sampling.options, model.spec));
                             return read_prompt(model);
                           }));
  if (std::cmp_greater(outcome_.prompt_ids.size(), session_->engine().n_ctx())) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the prompt has {} tokens, but the context holds {}; raise it with -c",
                      outcome_.prompt_ids.size(), session_->engine().n_ctx());
  }
  if (options_.echo && !options_.prompt_tokens) HOTSET_RETURN_IF_ERROR(print(prompt_));
  sampler_->accept(outcome_.prompt_ids);
  outcome_.load_us = steady_clock().now_us() - start_us;
  return {};
}

Status Generation::read_prompt(const engine::ModelDescription& model) {
  auto tokenizer = engine::model_tokenizer(model);
  if (tokenizer) {
    tokenizer_ = *std::move(tokenizer);
  } else if (!options_.prompt_tokens || tokenizer.error().code != ErrorCode::kNotFound) {
    return std::unexpected(std::move(tokenizer).error());
  }
  if (options_.prompt_tokens) {
    HOTSET_TRY(outcome_.prompt_ids, parse_ids("--prompt-tokens", *options_.prompt_tokens));
    HOTSET_RETURN_IF_ERROR(check_ids("--prompt-tokens", outcome_.prompt_ids, model.spec.n_vocab));
  } else {
    prompt_ = options_.prompt.value_or("");
    if (options_.prompt_file) {
      HOTSET_TRY(prompt_, read_text(*options_.prompt_file));
    }
    HOTSET_TRY(
        outcome_.prompt_ids,
        tokenizer_->encode(prompt_, {.parse_special = options_.parse_special, .add_bos = true}));
    if (outcome_.prompt_ids.empty()) {
      return make_error(ErrorCode::kInvalidArgument, "the prompt is empty, expected a text");
    }
  }
  if (tokenizer_) decoder_.emplace(*tokenizer_, text::DecodeOptions{.continues_text = true});
  return {};
}

Status Generation::print(std::string_view text) {
  outcome_.text += text;
  if (options_.json) return {};
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    return stdout_error();
  }
  return {};
}

Status Generation::emit(int32_t id) {
  outcome_.ids.push_back(id);
  sampler_->accept(id);
  if (!decoder_) {
    return print(fmt::format("{}{}", outcome_.ids.size() > 1 ? "," : "", id));
  }
  // A vocabulary may have fewer tokens than the embedding has rows; the rest say nothing.
  if (id >= tokenizer_->n_tokens()) return {};
  HOTSET_TRY(const std::string text, decoder_->push(id));
  return print(text);
}

Result<int32_t> Generation::next(std::span<const engine::BatchToken> batch) {
  HOTSET_TRY(const engine::DecodeResult result, session_->decode(batch));
  return sampler_->sample(result.logits);
}

Status Generation::generate() {
  const InterruptScope scope;
  std::vector<engine::BatchToken> batch;
  for (const int32_t id : outcome_.prompt_ids) {
    batch.push_back({.token = id, .position = static_cast<int32_t>(batch.size())});
  }
  batch.back().want_logits = true;
  const double start_us = steady_clock().now_us();
  auto id = next(batch);
  outcome_.prompt_us = steady_clock().now_us() - start_us;
  int32_t position = static_cast<int32_t>(batch.size());
  outcome_.stop = "length";
  while (id && std::cmp_not_equal(outcome_.ids.size(), options_.n_predict)) {
    if (tokenizer_ && !options_.ignore_eos && tokenizer_->is_end_of_generation(*id)) {
      outcome_.stop = "end";
      break;
    }
    HOTSET_RETURN_IF_ERROR(emit(*id));
    if (std::cmp_equal(outcome_.ids.size(), options_.n_predict)) break;
    if (position >= session_->engine().n_ctx()) {
      outcome_.stop = "context";
      break;
    }
    const engine::BatchToken token{.token = *id, .position = position++, .want_logits = true};
    id = next({&token, 1});
  }
  outcome_.generate_us = steady_clock().now_us() - start_us - outcome_.prompt_us;
  if (!id && id.error().code != ErrorCode::kCancelled) {
    // So that the message does not follow the text on its line.
    if (!options_.json && !outcome_.ids.empty()) HOTSET_RETURN_IF_ERROR(print("\n"));
    return std::unexpected(id.error());
  }
  if (!id) outcome_.stop = "interrupted";
  if (decoder_) HOTSET_RETURN_IF_ERROR(print(decoder_->finish()));
  return options_.json ? Status() : print("\n");
}

void Generation::report() const {
  const Outcome& o = outcome_;
  // The first token comes from the prompt's logits, so one step fewer was computed.
  const size_t n_steps = o.ids.empty() ? 0 : o.ids.size() - 1;
  if (options_.json) {
    const nlohmann::ordered_json report = {
        {"text", o.text},
        {"tokens", o.ids},
        {"stop", o.stop},
        {"seed", seed_},
        {"n_prompt", o.prompt_ids.size()},
        {"n_generated", o.ids.size()},
        {"load_ms", o.load_us / 1e3},
        {"prompt_ms", o.prompt_us / 1e3},
        {"generate_ms", o.generate_us / 1e3},
        {"prompt_tokens_per_s", per_second(o.prompt_ids.size(), o.prompt_us)},
        {"tokens_per_s", per_second(n_steps, o.generate_us)},
        {"n_threads", session_->engine().n_threads()},
        {"flash_attention", session_->engine().flash_attention()},
        {"moe_cache", session_->cache_json()},
    };
    std::puts(report.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
    return;
  }
  if (o.stop == "context") {
    log_warning("stopped: the context of {} positions is full; raise it with -c",
                session_->engine().n_ctx());
  }
  if (o.stop == "interrupted") log_info("stopped by Ctrl-C");
  if (options_.sampler.temperature > 0 && !options_.seed) log_info("--seed {}", seed_);
  log_info(
      "load {:.2f} s | prompt {} tokens, {:.1f} tokens/s | generated {} tokens, {:.1f} tokens/s",
      o.load_us / 1e6, o.prompt_ids.size(), per_second(o.prompt_ids.size(), o.prompt_us),
      o.ids.size(), per_second(n_steps, o.generate_us));
}

// "ID=BIAS", and as other programs write it "ID+BIAS" and "ID-BIAS". Errors: kInvalidArgument.
Result<engine::LogitBias> parse_logit_bias(const std::string& text) {
  engine::LogitBias bias;
  const char* const end = text.data() + text.size();
  const auto [after_id, id_error] = std::from_chars(text.data(), end, bias.id);
  const bool has_sign = after_id != end && (*after_id == '=' || *after_id == '+');
  if (id_error == std::errc() && (has_sign || (after_id != end && *after_id == '-'))) {
    const auto [after, error] = std::from_chars(after_id + (has_sign ? 1 : 0), end, bias.bias);
    if (error == std::errc() && after == end) return bias;
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "--logit-bias: found '{}', expected ID=BIAS, as 42=-1.5 or 42=-inf", text);
}

}  // namespace

Result<Sampling> make_sampling(const RunOptions& options) {
  Sampling sampling = {.options = options.sampler, .seed = 0};
  sampling.seed = options.seed ? *options.seed : std::random_device()();
  sampling.options.seed = sampling.seed;
  for (const std::string& text : options.logit_bias) {
    HOTSET_TRY(const engine::LogitBias bias, parse_logit_bias(text));
    sampling.options.logit_bias.push_back(bias);
  }
  HOTSET_RETURN_IF_ERROR(engine::Sampler::create(sampling.options));
  return sampling;
}

Status check_logit_bias(const engine::SamplerOptions& options, const model::ModelSpec& spec) {
  std::vector<int32_t> ids;
  for (const engine::LogitBias& bias : options.logit_bias) ids.push_back(bias.id);
  return check_ids("--logit-bias", ids, spec.n_vocab);
}

Status run(const RunOptions& options) {
  Generation generation(options);
  HOTSET_RETURN_IF_ERROR(generation.start());
  const Status generated = generation.generate();
  const Status finished = generation.finish();
  HOTSET_RETURN_IF_ERROR(generated);
  HOTSET_RETURN_IF_ERROR(finished);
  generation.report();
  return {};
}

}  // namespace hotset::cli
