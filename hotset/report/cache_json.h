// The expert cache as JSON, for whoever shows it: the account, the cache of a command (`moe_cache`
// of
// --json) and that of a server (GET /cache), made of the same pieces.
// Thread-compatible: pure functions.
#ifndef HOTSET_REPORT_CACHE_JSON_H_
#define HOTSET_REPORT_CACHE_JSON_H_

#include <nlohmann/json_fwd.hpp>

#include "hotset/cache/cache_counts.h"
#include "hotset/report/cache_report.h"
#include "hotset/report/cache_verdict.h"
#include "hotset/report/cache_view.h"

namespace hotset::report {

// An object with every field of the account, its hit rate (0 to 1) and what all uploads took,
// as far as it is known.
nlohmann::ordered_json counts_json(const cache::CacheCounts& counts);

// The object "moe_cache": what the cache is, with a report (null: none) what it did in total, and
// with details by layer, batch class and beside Belady.
nlohmann::ordered_json cache_json(const CacheState& state, const CacheReport* report,
                                  bool with_details);

// GET /cache: what the cache is, holds and did, by layer.
nlohmann::ordered_json cache_json(const CacheView& view);

}  // namespace hotset::report

#endif  // HOTSET_REPORT_CACHE_JSON_H_
