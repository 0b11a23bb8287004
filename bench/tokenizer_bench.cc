// How fast texts become tokens, in bytes per second, and what making a tokenizer costs.
// HOTSET_BENCH_MODEL names the file with the vocabulary (default: the demo model),
// HOTSET_BENCH_TEXT a text (default: made-up prose).
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "hotset/base/random.h"
#include "hotset/engine/weights/model_tokenizer.h"
#include "hotset/model/gguf_file.h"
#include "hotset/text/tokenizer.h"

namespace hotset {
namespace {

constexpr uint64_t kSeed = 20261210;

std::string from_environment(const char* name, const char* otherwise) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

const text::TokenizerSpec& spec() {
  static const text::TokenizerSpec loaded = [] {
    const std::string path =
        from_environment("HOTSET_BENCH_MODEL", HOTSET_SOURCE_DIR "/assets/demo-54m-moe.gguf");
    const auto file = model::GgufFile::open(path);
    const auto read = file ? engine::read_tokenizer_spec(*file) : std::unexpected(file.error());
    if (!read) {
      std::fprintf(stderr, "%s\n", read.error().message.c_str());
      std::exit(1);
    }
    return *read;
  }();
  return loaded;
}

// Sentences of made-up words whose frequencies fall like those of a language (Zipf's law).
std::string made_up_prose(size_t n_bytes) {
  constexpr std::string_view syllables[] = {"the", "an", "er",  "is", "lo", "mi", "st",  "ran",
                                            "de",  "to", "ing", "we", "ca", "ha", "pre", "o"};
  Random random(kSeed);
  std::vector<std::string> words(20000);
  for (std::string& word : words) {
    for (uint64_t n = 1 + random.below(4); n > 0; --n) {
      word += syllables[random.below(std::size(syllables))];
    }
  }
  std::string prose;
  while (prose.size() < n_bytes) {
    const double rank = std::pow(static_cast<double>(words.size()), random.uniform()) - 1;
    prose += words[static_cast<size_t>(rank)];
    const uint64_t mark = random.below(60);
    prose += mark < 5 ? ", " : mark < 9 ? ". " : mark == 9 ? ".\n\n" : mark == 10 ? " 1871 " : " ";
  }
  return prose;
}

std::string prose() {
  const std::string path = from_environment("HOTSET_BENCH_TEXT", "");
  if (path.empty()) return made_up_prose(1 << 20);
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void encode(benchmark::State& state, const std::string& pre, const std::string& text) {
  text::TokenizerSpec named = spec();
  if (!pre.empty()) named.pre = pre;
  const auto tokenizer = text::Tokenizer::create(std::move(named));
  if (!tokenizer) {
    state.SkipWithError(tokenizer.error().message.c_str());
    return;
  }
  size_t n_tokens = 0;
  for (auto _ : state) {
    const auto ids = tokenizer->encode(text);
    if (!ids) {
      state.SkipWithError(ids.error().message.c_str());
      return;
    }
    n_tokens = ids->size();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
  state.counters["bytes_per_token"] =
      static_cast<double>(text.size()) / static_cast<double>(n_tokens);
}

void BM_EncodeProse(benchmark::State& state, const std::string& pre) {
  encode(state, pre, prose());
}
BENCHMARK_CAPTURE(BM_EncodeProse, as_the_file_says, "")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_EncodeProse, gpt_2, "gpt-2")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_EncodeProse, llama_bpe, "llama-bpe")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_EncodeProse, qwen2, "qwen2")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_EncodeProse, gpt_4o, "gpt-4o")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_EncodeProse, deepseek_v3, "deepseek-v3")->Unit(benchmark::kMillisecond);

void BM_EncodeOneWord(benchmark::State& state) {
  Random random(kSeed);
  std::string word(static_cast<size_t>(state.range(0)), 'a');
  for (char& letter : word) letter = static_cast<char>('a' + random.below(26));
  encode(state, "gpt-2", word);
}
BENCHMARK(BM_EncodeOneWord)->Range(1 << 10, 1 << 20)->Unit(benchmark::kMillisecond);

void BM_EncodeAPrompt(benchmark::State& state) {
  encode(state, "", "Write a short story about a lighthouse keeper who finds a letter.");
}
BENCHMARK(BM_EncodeAPrompt)->Unit(benchmark::kMicrosecond);

void BM_Create(benchmark::State& state) {
  for (auto _ : state) {
    const auto tokenizer = text::Tokenizer::create(spec());
    benchmark::DoNotOptimize(tokenizer.has_value());
  }
  state.counters["tokens"] = static_cast<double>(spec().tokens.size());
}
BENCHMARK(BM_Create)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace hotset
