// Hit rate over cache size as an SVG picture: one panel per trace, one line per policy and share,
// between the bounds.
// Thread-compatible: pure functions.
#ifndef HOTSET_REPORT_REPLAY_CHART_H_
#define HOTSET_REPORT_REPLAY_CHART_H_

#include <span>
#include <string>

#include "hotset/sim/matrix.h"

namespace hotset::report {

enum class ChartAxis { kCachePercent, kCacheMib };

// An SVG document. Rows need not be in any order.
std::string replay_chart(std::span<const sim::MatrixRow> rows, ChartAxis axis);

}  // namespace hotset::report

#endif  // HOTSET_REPORT_REPLAY_CHART_H_
