// The expert cache as GET /cache shows it.
// Thread-safe: a pure function.
#ifndef HOTSET_SERVER_CACHE_JSON_H_
#define HOTSET_SERVER_CACHE_JSON_H_

#include "hotset/report/cache_view.h"
#include "hotset/server/json_fields.h"
#include "hotset/server/scheduler.h"

namespace hotset::server {

Json cache_json(const report::CacheView& view, const SchedulerStatus& status);

}  // namespace hotset::server

#endif  // HOTSET_SERVER_CACHE_JSON_H_
