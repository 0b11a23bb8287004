// Speed of prefill and decode on the CPU: what bench/vs_llama_cpp measures for hotset.
//   engine_speed MODEL N_THREADS N_PROMPT N_GENERATE
// Warms up with one prompt and one token, then prints one JSON object. Token ids are random but
// fixed; sampling is left out, as in the program it is compared with.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "hotset/base/clock.h"
#include "hotset/base/error.h"
#include "hotset/base/random.h"
#include "hotset/engine/run/engine.h"

namespace hotset {
namespace {

Result<double> timed_us(engine::Engine& engine, int32_t n_tokens, bool one_by_one) {
  engine.forget(0, 0, engine.n_ctx());
  Random random(1);
  std::vector<engine::BatchToken> batch;
  for (int32_t i = 0; i < n_tokens; ++i) {
    batch.push_back(
        {.token = static_cast<int32_t>(random.below(static_cast<uint64_t>(engine.spec().n_vocab))),
         .position = i,
         .want_logits = one_by_one || i + 1 == n_tokens});
  }
  const double start_us = steady_clock().now_us();
  if (!one_by_one) {
    HOTSET_RETURN_IF_ERROR(engine.decode(batch));
  } else {
    for (const engine::BatchToken& token : batch) {
      HOTSET_RETURN_IF_ERROR(engine.decode({&token, 1}));
    }
  }
  return steady_clock().now_us() - start_us;
}

Status measure(const std::string& path, int n_threads, int32_t n_prompt, int32_t n_generate) {
  HOTSET_TRY(engine::ModelDescription description, engine::describe_model(path));
  HOTSET_TRY(auto engine,
             engine::Engine::create(
                 std::move(description),
                 {.n_threads = n_threads, .context = {.n_ctx = std::max(n_prompt, n_generate)}}));
  HOTSET_RETURN_IF_ERROR(timed_us(*engine, n_prompt, false));
  HOTSET_RETURN_IF_ERROR(timed_us(*engine, 1, true));
  HOTSET_TRY(const double prompt_us, timed_us(*engine, n_prompt, false));
  HOTSET_TRY(const double generate_us, timed_us(*engine, n_generate, true));
  std::printf("{\"prompt_tokens_per_s\": %.3f, \"tokens_per_s\": %.3f}\n",
              n_prompt * 1e6 / prompt_us, n_generate * 1e6 / generate_us);
  return {};
}

}  // namespace
}  // namespace hotset

int main(int argc, char** argv) {
#ifndef NDEBUG
  std::fprintf(stderr, "this is a debug build, expected a release build\n");
  return 1;
#endif
  if (argc != 5) {
    std::fprintf(stderr, "usage: %s MODEL N_THREADS N_PROMPT N_GENERATE\n", argv[0]);
    return 2;
  }
  const hotset::Status status =
      hotset::measure(argv[1], std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4]));
  if (!status) std::fprintf(stderr, "%s\n", status.error().message.c_str());
  return status ? 0 : 1;
}
