// What `hotset bench` is asked for and what it gives: plain values.
// Thread-compatible.
#ifndef HOTSET_MEASURE_BENCH_OPTIONS_H_
#define HOTSET_MEASURE_BENCH_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hotset/measure/build_info.h"
#include "hotset/measure/machine_info.h"
#include "hotset/measure/model_options.h"
#include "hotset/measure/speed_bound.h"

namespace hotset::measure {

enum class BenchFormat { kTable, kCsv, kMarkdown, kJson };

// Which tokens are computed.
struct BenchTokensOptions {
  std::string text_path = {};  // empty: the text that is built in
  bool random = false;         // uniform ones instead of a text's
  uint64_t random_seed = 1;    // of these
};

struct BenchOptions {
  // Device, threads, tokens of a ubatch, cache size and share are those of the lists.
  ModelOptions model;
  std::vector<std::string> devices = {"auto"};
  std::vector<int> threads = {0};
  std::vector<int32_t> ubatches = {512};
  std::vector<std::string> cache_mib = {"auto"};
  std::vector<std::string> cpu_shares = {"auto"};
  std::vector<int32_t> n_prompts = {512};  // 0: no prefill is measured
  std::vector<int32_t> n_gens = {128};     // 0: no decode is measured
  std::vector<int32_t> depths = {0};       // tokens in the context before the measured ones
  std::vector<int32_t> n_parallels = {1};  // sequences computed together
  int32_t n_repetitions = 5;               // 1 to 1000
  bool warm_up = true;
  BenchTokensOptions tokens = {};
  BenchFormat format = BenchFormat::kTable;
};

// One row: decode (n_gen above 0) or prefill (n_prompt above 0).
struct BenchCase {
  std::string device = {};  // a name; empty: the CPU alone
  int n_threads = 0;
  int32_t n_ubatch = 512;
  std::string cache_mib = "auto";
  std::string cpu_share = "auto";
  int32_t n_prompt = 0;
  int32_t n_gen = 0;
  int32_t depth = 0;
  int32_t n_parallel = 1;

  bool operator==(const BenchCase&) const = default;
};

// Means per measured token.
struct BenchBytes {
  measure::ReadBytes reads;
  bool all_known = false;  // `reads` is complete: a bound can be told
  bool cpu_known = false;  // `cpu` is complete
  double linked = 0;       // over the link: uploads, fills, and what prefills stream
  double cpu = 0;          // read by the CPU lane
};

struct BenchRow {
  BenchCase what;
  // What became of it.
  std::string device_name = {};  // "none", "emu"
  int n_threads = 0;
  bool virtual_clock = false;
  bool flash_attention = false;
  int64_t n_slots = 0;
  int64_t n_experts = 0;  // of all layers on the device
  std::string verdict = {};
  std::vector<double> tokens_per_s = {};  // by repetition
  std::optional<double> hit_rate = {};    // none: nothing was looked up
  BenchBytes bytes = {};
  measure::MachineRates rates = {};
  double bound_tokens_per_s = 0;  // 0: not known

  double mean() const;
  double deviation() const;  // of the sample; 0 for one repetition
  // Of the whole row, GB/s, over all of its time.
  double gb_per_s(double bytes_per_token) const { return bytes_per_token * mean() / 1e9; }
};

// What all rows share.
struct BenchContext {
  BuildInfo build;
  std::string ggml;
  MachineInfo machine;
  std::string model;  // file, without folder
  std::string architecture;
  Bytes model_bytes = {};
  Bytes expert_bytes = {};
  int64_t n_layer = 0;
  int64_t n_expert = 0;
  int64_t n_expert_used = 0;
  std::string tokens;  // "text", "text FILE" or "random"
  bool text_repeats = false;
  int32_t n_repetitions = 0;
  std::string flags = {};  // the others, as given
};

struct BenchResult {
  BenchContext context;
  std::vector<BenchRow> rows;
  bool interrupted = false;  // Ctrl-C: rows are those measured so far
};

}  // namespace hotset::measure

#endif  // HOTSET_MEASURE_BENCH_OPTIONS_H_
