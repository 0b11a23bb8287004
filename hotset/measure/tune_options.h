// What `hotset tune` is asked for, what it measures and what it finds: plain values.
// Thread-compatible.
#ifndef HOTSET_MEASURE_TUNE_OPTIONS_H_
#define HOTSET_MEASURE_TUNE_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hotset/base/units.h"
#include "hotset/lanes/cache_rules.h"
#include "hotset/measure/model_options.h"
#include "hotset/measure/thread_search.h"
#include "hotset/sim/tuning.h"

namespace hotset::measure {

enum class TuneFormat { kText, kMarkdown, kJson };

struct TuneCommandOptions {
  // Its cache size and share are not used. 0 threads: searched for; load mode auto: found out.
  ModelOptions model;
  std::optional<CoreCount> cores = {};  // to choose threads among; absent: this machine's
  std::string prompts_file = {};  // prompts, one a line, or a JSON array of strings; empty: a text
  int32_t n_tokens = 256;         // of a run that count, 16 to 2^20
  int32_t n_warm_up = 128;        // tokens before them, which fill the cache
  std::optional<int64_t> max_mib = {};  // most device memory for experts
  bool fresh = false;                   // earlier runs are not reused
  std::string record_folder = {};       // of earlier runs; empty: the user's cache folder
  std::string apply_path = {};          // configuration to write; empty: none
  std::string html_path = {};           // report to write; empty: none
  TuneFormat format = TuneFormat::kText;
  // A program to tune instead, which takes --moe-cache-mib and --moe-cache-cpu-share.
  std::vector<std::string> server = {};
  int32_t server_timeout_s = 600;  // to be ready, and for each answer
};

// What runs are of, and all that was measured: what is kept between two calls.
struct TuneRecord {
  std::string key = {};  // command, model, machine and build: runs of another key are not reused
  std::string command = {};  // for the ready command line: "hotset run -m model.gguf"
  std::string model = {};
  std::string device = {};
  std::string machine = {};
  std::string load_mode = {};                   // mmap, pinned: of the runs
  int n_threads = 0;                            // of the runs; 0: not known
  std::vector<ThreadTrial> thread_trials = {};  // share auto and most cache; empty: not searched
  std::string tokens = {};                      // "text", "prompts FILE"
  int32_t n_tokens = 0;
  Bytes expert_bytes = {};          // of all experts that a cache may hold
  Bytes most_cache = {};            // that was allowed
  bool all_fit = false;             // most_cache holds all experts
  lanes::LaneRates rates = {};      // measured at the start
  double no_cache_ms = 0;           // per token; 0: not measured
  double prefill_tokens_per_s = 0;  // 0: not measured
  int64_t skip_tokens = 0;          // of the trace
  std::string trace = {};           // file, beside the record
  std::vector<sim::TuneRun> runs = {};
  lanes::CacheRules rules = {};  // of the replay, but for its rates, which are those above
  bool is_server = false;
  bool is_hotset = false;  // a server that says by which of hotset's rules its cache decides
};

// A setting that may be recommended, as it was measured. No cache: cache 0.
struct TuneChoice {
  Bytes cache = {};
  lanes::CpuShare share = 0;
  double measured_ms = 0;
  double predicted_ms = 0;  // 0: not predicted
};

// The recommendation with the experts in the file (mmap) and in pinned memory.
struct LoadModeTrial {
  std::string mode = {};
  double ms_per_token = 0;
};

// No device at all: what the recommendation of no cache is compared with.
struct CpuAloneTrial {
  double ms_per_token = 0;
  int n_threads = 0;
};

struct TuneOutcome {
  TuneRecord record;
  std::optional<sim::TuneResult> result;  // none: all experts fit
  std::optional<TuneChoice> predicted;    // what the prediction recommends, then measured
  std::optional<TuneChoice> chosen;       // the recommendation, after that
  std::string why_chosen = {};            // in words
  std::string why_not = {};               // nothing is recommended
  std::string load_mode = {};             // the recommendation; empty: that of the runs
  std::vector<LoadModeTrial> load_mode_trials = {};  // empty: not compared
  std::string why_load_mode = {};                    // in words; empty: it was given
  std::optional<CpuAloneTrial> cpu_alone = {};       // none: not compared
  bool without_device = false;                       // it is recommended
};

}  // namespace hotset::measure

#endif  // HOTSET_MEASURE_TUNE_OPTIONS_H_
