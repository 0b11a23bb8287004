// Lines and points over a numeric axis as an SVG picture that takes its colours from the page.
// Thread-compatible: pure functions.
#ifndef HOTSET_REPORT_LINE_CHART_H_
#define HOTSET_REPORT_LINE_CHART_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hotset::report {

struct ChartSeries {
  std::string name;
  std::vector<std::pair<double, double>> points;  // by x
  bool dashed = false;
  bool only_points = false;
  int colour = 0;  // index into a palette; below 0: grey
};

struct LineChart {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<ChartSeries> series;
};

// An <svg> element: text and grid are `currentColor`, so it stands on light and dark pages.
std::string line_chart_svg(const LineChart& chart);

// A round step (1, 2 or 5 times a power of ten) that gives up to about `n` ticks. Requires: both
// above 0.
double tick_step(double range, int n);

// `text` with what HTML and XML give a meaning written as entities.
std::string escaped_html(std::string_view text);

}  // namespace hotset::report

#endif  // HOTSET_REPORT_LINE_CHART_H_
