// What the server counts, as Prometheus reads it.
// Thread-safe: a pure function.
#ifndef HOTSET_SERVER_METRICS_H_
#define HOTSET_SERVER_METRICS_H_

#include <cstdint>
#include <map>
#include <string>

#include "hotset/report/cache_view.h"
#include "hotset/server/scheduler.h"

namespace hotset::server {

struct MetricsInput {
  SchedulerStatus scheduler = {};
  cache::CacheCounts cache = {};
  std::map<int, uint64_t> responses = {};  // by status
  int32_t n_connections = 0;
  double start_time_s = 0;  // Unix time
  std::string version = {};
  std::string model = {};
};

// Text format 0.0.4.
std::string metrics_text(const MetricsInput& input);

}  // namespace hotset::server

#endif  // HOTSET_SERVER_METRICS_H_
