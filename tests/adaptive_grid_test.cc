// Share auto against every fixed share and no cache at all, over a grid of machines and cache sizes
// on the virtual clock: it must reach 0.97 of the best of them everywhere. What counts is the whole
// run, from an empty cache on.
//
// HOTSET_PRINT_GRID=1 prints the tables of docs/adaptive.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "hotset/engine/weights/model_tokenizer.h"
#include "hotset/policy/registry.h"
#include "hotset/sim/matrix.h"
#include "hotset/text/tokenizer.h"
#include "hotset/trace/edit.h"
#include "tests/cached_decode.h"

namespace hotset::test {
namespace {

using engine::EngineOptions;

constexpr double kLeastOfBest = 0.97;
const std::vector<double> kSizes = {5, 15, 30, 60};  // percent of the experts' bytes
const std::vector<double> kShares = {0, 0.25, 0.5, 0.75, 1};

// What a run took, of each way to serve: "no cache", "0", ..., "1", "auto".
using Times = std::map<std::string, double>;

std::string share_name(const std::optional<double>& share) {
  return share ? fmt::format("{:g}", *share) : "auto";
}

void expect_auto_keeps_up(const std::string& model, double link, double cpu, double size,
                          const Times& us) {
  std::string best = "no cache";
  for (const auto& [name, time] : us) {
    if (name != "auto" && time < us.at(best)) best = name;
  }
  const double ratio = us.at(best) / us.at("auto");
  EXPECT_GE(ratio, kLeastOfBest) << model << ", link " << link << ", CPU " << cpu << " GB/s, "
                                 << size << "%: best is " << best;
  if (std::getenv("HOTSET_PRINT_GRID") == nullptr) return;
  fmt::print("| {} | {:g} | {:g} | {:g}% | {:.3f} | {} | {:.2f} |\n", model, link, cpu, size, ratio,
             best, us.at("no cache") / us.at("auto"));
}

class Grid : public testing::TestWithParam<std::tuple<double, double>> {};

std::vector<int32_t> text_ids(const engine::ModelDescription& model, size_t n) {
  std::ifstream in(assets_dir().parent_path() / "tests/data/prose.txt");
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  auto spec = engine::read_tokenizer_spec(model.file);
  HOTSET_CHECK(spec.has_value());
  auto tokenizer = text::Tokenizer::create(*std::move(spec));
  HOTSET_CHECK(tokenizer.has_value());
  auto ids = tokenizer->encode(text.substr(0, 8 * n), {});
  HOTSET_CHECK(ids.has_value() && ids->size() >= n);
  ids->resize(n);
  return *ids;
}

double engine_us(const std::string& device, std::optional<Bytes> cache,
                 const std::optional<double>& share) {
  constexpr size_t kTokens = 96;
  auto description = describe(demo_model());
  const std::vector<int32_t> ids = text_ids(description, kTokens);
  EngineOptions options = cache_options(device, cache.value_or(Bytes{}));
  options.n_threads = 2;
  options.cache.rules.cpu_share = share;
  const auto engine = make_engine(std::move(description), options);
  if (engine == nullptr) return 0;
  const double start_us = engine->device()->now_us();
  for (const int32_t id : ids) {
    decode(*engine, as_batch({&id, 1}, true, engine->next_position(0)));
  }
  return engine->device()->now_us() - start_us;
}

TEST_P(Grid, AutoOfTheEngineKeepsUpWithTheBest) {
  const auto [link, cpu] = GetParam();
  const std::string device = fmt::format("emu:clock=virtual,gbps={},cpu_gbps={}", link, cpu);
  const auto description = describe(demo_model());
  Bytes experts;
  for (const auto& tensor : description.file.tensors()) {
    if (tensor.name.ends_with("_exps.weight")) experts += tensor.n_bytes;
  }
  const double without_us = engine_us(device, {}, {});
  for (const double size : kSizes) {
    const Bytes cache{static_cast<int64_t>(size / 100 * static_cast<double>(experts.count))};
    Times us = {{"no cache", without_us}, {"auto", engine_us(device, cache, {})}};
    for (const double share : kShares) us[share_name(share)] = engine_us(device, cache, share);
    expect_auto_keeps_up("demo", link, cpu, size, us);
  }
}

// 384 tokens of text, `n_batch` at a time.
double batches_us(const std::string& device, Bytes cache, size_t n_batch,
                  std::optional<int32_t> cache_batch) {
  auto description = describe(demo_model());
  const std::vector<int32_t> ids = text_ids(description, 384);
  EngineOptions options = cache_options(device, cache);
  options.n_threads = 2;
  options.cache.rules.cache_batch = cache_batch;
  const auto engine = make_engine(std::move(description), options);
  if (engine == nullptr) return 0;
  const double start_us = engine->device()->now_us();
  for (size_t i = 0; i < ids.size(); i += n_batch) {
    decode(*engine, as_batch(std::span(ids).subspan(i, n_batch), false, engine->next_position(0)));
  }
  return engine->device()->now_us() - start_us;
}

TEST(Batches, AutoKeepsUpWithUploadsAndWithStreaming) {
  for (const std::string rates :
       {"gbps=2,us=1,cpu_gbps=5", "gbps=8,us=1,cpu_gbps=5", "gbps=20,us=0.2,cpu_gbps=2"}) {
    const std::string device = "emu:clock=virtual," + rates;
    for (const size_t n_batch : {4, 16, 64, 192}) {
      for (const int64_t mib : {8, 24}) {
        const double auto_us = batches_us(device, hotset::mib(mib), n_batch, {});
        const double uploads_us = batches_us(device, hotset::mib(mib), n_batch, 1 << 16);
        const double streams_us = batches_us(device, hotset::mib(mib), n_batch, 1);
        const double ratio = std::min(uploads_us, streams_us) / auto_us;
        fmt::print(
            "{}, {} MiB, batches of {}: auto {:.0f} us, uploads {:.0f}, streams {:.0f}: "
            "{:.3f}\n",
            rates, mib, n_batch, auto_us, uploads_us, streams_us, ratio);
        EXPECT_GE(ratio, 0.92) << rates << ", " << mib << " MiB, batches of " << n_batch;
      }
    }
  }
}

// All experts of a trace's lookups by the CPU lane, in milliseconds per token.
double no_cache_ms(const sim::ReplayResult& all_misses_on_cpu, double cpu_gbps) {
  const auto n_cpu = static_cast<double>(all_misses_on_cpu.counts.cpu);
  const double expert_bytes = static_cast<double>(all_misses_on_cpu.counts.cpu_bytes.count) / n_cpu;
  return static_cast<double>(all_misses_on_cpu.counts.selected) /
         static_cast<double>(all_misses_on_cpu.tokens) * expert_bytes / (cpu_gbps * 1e6);
}

TEST_P(Grid, AutoKeepsUpWithTheBestOnTheRoutingOfLargeModels) {
  const auto folder = shared_dir("traces");
  if (folder.empty()) GTEST_SKIP() << "HOTSET_SHARED_DIR has no traces";
  const auto [link, cpu] = GetParam();
  const TemporaryFolder cut;
  for (const std::string name : {"qwen3-30b-a3b", "gpt-oss-120b"}) {
    // The beginning: in a short run filling the cache counts most.
    const std::string trace = cut / (name + ".mct");
    ASSERT_TRUE(trace::cut_trace(folder / (name + ".mct"), trace, {.n_tokens = 400}));
    sim::MatrixOptions options{.traces = {trace},
                               .policies = {std::string(policy::kDefaultPolicy)},
                               .sizes = {},
                               .shares = {std::nullopt},
                               .counted = {.skip_tokens = 0}};
    options.rules.rates = lanes::kTypicalRates;
    options.rules.rates->link_gb_per_s = link;
    options.rules.rates->cpu_gb_per_s = cpu;
    for (const double size : kSizes) options.sizes.push_back({.value = size});
    for (const double share : kShares) options.shares.emplace_back(share);
    const auto rows = sim::replay_matrix(options);
    ASSERT_TRUE(rows) << rows.error().message;
    for (size_t i = 0; i < kSizes.size(); ++i) {
      Times ms;
      for (const sim::MatrixRow& row :
           std::span(*rows).subspan(i * options.shares.size(), options.shares.size())) {
        ms[row.share ? share_name(*row.share) : "auto"] = row.result.modelled_ms_per_token();
        if (row.share == 1.0) ms["no cache"] = no_cache_ms(row.result, cpu);
      }
      expect_auto_keeps_up(name, link, cpu, kSizes[i], ms);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Machines, Grid,
                         testing::Combine(testing::Values(0.5, 2, 8, 32),
                                          testing::Values(5, 20, 80)));

}  // namespace
}  // namespace hotset::test
