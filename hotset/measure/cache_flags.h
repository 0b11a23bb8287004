// The flags of the expert cache, as plain values, and what they mean to the engine.
// Thread-compatible: plain values.
#ifndef HOTSET_MEASURE_CACHE_FLAGS_H_
#define HOTSET_MEASURE_CACHE_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "hotset/base/error.h"
#include "hotset/engine/run/engine.h"

namespace hotset::measure {

struct CacheFlags {
  std::string mib = "auto";                     // what the memory plan leaves, or MiB; 0: no cache
  std::string cpu_share = default_cpu_share();  // 0 to 1
  std::string batch = "auto";                   // or 1 or more tokens
  std::string policy = lanes::CacheRules{}.policy;
  std::string fills = "on";        // on, off
  std::string rates = "measured";  // measured, typical
  std::string headroom_mib = {};   // device memory to leave free; empty: what the plan thinks right
  bool stats = false;              // statistics at the end and on SIGUSR1
  std::string trace_out = {};      // routing trace to write (MCT1); empty: none

  static std::string default_cpu_share();
};

// Sets the cache's part of `options`. Errors: kInvalidArgument, naming the flag, the value and what
// was expected.
Status apply(const CacheFlags& flags, engine::EngineOptions& options);

// --moe-cache-batch: a number of tokens, or none for "auto". Errors: kInvalidArgument.
Result<std::optional<int32_t>> parse_batch(const std::string& text);

// Names of the policies that can run a cache, with commas between them.
std::string online_policies();

// Whether a cache can be run by the policy of this name. Errors: kInvalidArgument, with the names.
Status check_policy(const std::string& name);

}  // namespace hotset::measure

#endif  // HOTSET_MEASURE_CACHE_FLAGS_H_
