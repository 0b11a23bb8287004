// Never slower than leaving the experts on the CPU: design.md section 5. Which baseline a run has
// is decided at load (`choose_baseline`); while it runs, `NeverSlower` watches windows of tokens
// and takes the cache back step by step: first uploads and fills, then its hits. Both only decide;
// the engine acts and logs.
#ifndef HOTSET_LANES_NEVER_SLOWER_H_
#define HOTSET_LANES_NEVER_SLOWER_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "hotset/base/error.h"
#include "hotset/lanes/upload_value.h"

namespace hotset::lanes {

// ---- At load

struct BaselineTimes {
  double plain_us = 0;  // a token's experts on the CPU as they are in the file; above 0
  std::optional<double> repacked_us = {};  // in the CPU's own layout, where it has one; above 0
  double cache_us = 0;                     // predicted with the cache; above 0
};

enum class Baseline { kPlain, kRepacked };

struct BaselineChoice {
  Baseline baseline = Baseline::kPlain;  // the faster of the two; plain where they are equal
  double baseline_us = 0;
  double cache_us = 0;
  bool use_cache = false;  // the cache is predicted to be faster than the baseline
};

// Errors: kInvalidArgument, naming the field.
Result<BaselineChoice> choose_baseline(const BaselineTimes& times);
// One line with the numbers, for the verdict.
std::string describe(const BaselineChoice& choice);

// ---- While running

// How much of the cache is in use.
enum class CacheUse : uint8_t {
  kFull,  // hits, uploads and fills
  kHits,  // what is resident is computed on the device, and nothing comes in
  kNone,  // the CPU computes everything
};

struct NeverSlowerOptions {
  int window_tokens = 64;         // 1 or more
  int windows_to_stop = 2;        // windows in a row, 1 or more
  int windows_to_resume = 2;      // 1 or more
  int probes_to_return = 2;       // from kNone to kHits: probes in a row, 1 or more
  double stop_ratio = 1.02;       // stop above this times T_nc; 1 or more
  double resume_ratio = 0.98;     // resume below this times T_nc; above 0, at most 1
  double max_probe_share = 0.01;  // of the tokens, and of the time; 0 (never) or 1e-12 to 1
  // A resume that is stopped again within twice windows_to_stop doubles the windows that the next
  // one takes, up to this: predictions that do not come true must not cost every other window. A
  // resume that lasts sets it back. Likewise the probes for a return that is undone within four
  // times windows_to_stop.
  int max_windows_to_resume = 64;  // windows_to_resume or more
  int max_probes_to_return = 64;   // probes_to_return or more
  double probe_half_life = 4;      // probes, above 0
};

// What one token took, and what the fits said about it.
struct TokenTimes {
  // All experts were on the CPU lane; with kNone, where they are anyway, they were not.
  bool is_probe = false;
  double token_us = 0;     // measured, above 0
  double no_cache_us = 0;  // predicted T_nc, above 0
  double cache_us = 0;     // predicted with uploads allowed, above 0
};

// Said once when more or less of the cache is used: one step at a time.
struct CacheUseChange {
  CacheUse from = CacheUse::kFull;
  CacheUse to = CacheUse::kFull;
  int64_t token = 0;  // tokens seen so far
  // Mean of the window, or of the probe: measured for less use, predicted with uploads for kFull,
  // and the lower of the two for a return to kHits.
  double cache_us = 0;
  double no_cache_us = 0;  // T_nc of the same tokens, corrected by what was measured
  int n_asking = 0;        // windows in a row that said so; probes for a return to kHits
};
std::string describe(const CacheUseChange& change);

// Thread-compatible.
class NeverSlower {
 public:
  // Errors: kInvalidArgument, naming the field.
  static Result<NeverSlower> create(const NeverSlowerOptions& options);

  CacheUse use() const { return use_; }
  // May uploads and fills run?
  bool uploads_allowed() const { return use_ == CacheUse::kFull; }

  // Shall the next token be a probe? With kNone one that uses what is resident, else one without a
  // cache; a token without a cache is predicted to take `no_cache_us`. Only if with it the probes
  // are within their share of the tokens and of the time, both since the last probe and in all.
  // Asking twice gives the same answer. A time that is not above 0 and finite: no.
  bool wants_probe(double no_cache_us) const;

  // Takes a finished token in; a change is returned once, by the token that completes the last
  // window it rests on.
  // Errors: kInvalidArgument, naming the field, if a time is not above 0 and finite; nothing
  // changes.
  Result<std::optional<CacheUseChange>> observe(const TokenTimes& token);

  // Measured over predicted T_nc, as the probes found it; with kNone, the windows.
  double no_cache_correction() const { return correction_.mean(); }
  int64_t n_tokens() const { return n_tokens_; }
  int64_t n_probes() const { return n_probes_; }

 private:
  // Tokens since the last window was closed; the sums leave probes out.
  struct Window {
    int n = 0;         // probes included
    int n_normal = 0;  // that were no probes
    double token_us = 0;
    double no_cache_us = 0;  // as predicted, uncorrected
    double cache_us = 0;
  };
  // What must ask in a row before more of the cache is tried again: twice as much after each try
  // that was soon undone.
  struct Patience {
    int least = 1;
    int most = 1;
    int needed = least;
    std::optional<int64_t> windows_since_try = {};

    void undone(int64_t soon) {
      const bool failed = windows_since_try && *windows_since_try <= soon;
      needed = failed ? std::min(2 * needed, most) : least;
    }
  };

  explicit NeverSlower(const NeverSlowerOptions& options);
  // A finished probe.
  std::optional<CacheUseChange> take_probe(const TokenTimes& token);
  std::optional<CacheUseChange> close_window();
  // Without a cache tokens took `measured_us`, predicted were `predicted_us`.
  void correct(double measured_us, double predicted_us);
  CacheUseChange change_to(CacheUse use, double cache_us, double no_cache_us, int n_asking);

  NeverSlowerOptions options_;
  DecayedMean correction_;  // measured over predicted T_nc
  int64_t probe_spacing_;   // tokens from one probe to the next, at least
  Patience resume_;         // uploads, in windows
  Patience return_;         // from kNone to kHits, in probes
  CacheUse use_ = CacheUse::kFull;
  int64_t n_tokens_ = 0;
  int64_t n_probes_ = 0;
  int64_t n_since_probe_ = 0;  // tokens after the last probe, or since the start
  double total_us_ = 0;
  double probe_us_ = 0;
  double us_since_probe_ = 0;
  Window window_;
  int n_asking_less_ = 0;  // windows in a row that ask for less use
  int n_asking_more_ = 0;  // windows in a row that ask for uploads; with kNone, probes for a return
  double hits_ratio_ = 1;  // a token with kHits over one without a cache, as measured last
};

}  // namespace hotset::lanes

#endif  // HOTSET_LANES_NEVER_SLOWER_H_
