// The account of an expert cache as JSON, the same wherever it is shown.
// Thread-compatible: pure functions.
#ifndef HOTSET_REPORT_COUNTS_JSON_H_
#define HOTSET_REPORT_COUNTS_JSON_H_

#include <nlohmann/json_fwd.hpp>

#include "hotset/cache/cache_counts.h"

namespace hotset::report {

// An object with every field of the account, its hit rate (0 to 1) and what all uploads took,
// as far as it is known.
nlohmann::ordered_json counts_json(const cache::CacheCounts& counts);

}  // namespace hotset::report

#endif  // HOTSET_REPORT_COUNTS_JSON_H_
