#include "hotset/report/replay_chart.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <compare>
#include <cstddef>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "hotset/report/line_chart.h"
#include "hotset/report/replay_report.h"

namespace hotset::report {
namespace {

// Lengths are in SVG user units, which a browser shows as pixels.
constexpr double kPanelWidth = 360;
constexpr double kPanelHeight = 280;
constexpr double kLeft = 58;  // of a panel, for the numbers and the name of the axis
constexpr double kRight = 14;
constexpr double kTop = 34;
constexpr double kBottom = 48;
constexpr double kMargin = 12;
constexpr double kLegendLine = 22;
constexpr double kLegendSample = 34;
// A little more than the mean width of a character at 12 units, for places of words.
constexpr double kCharacter = 6.8;
constexpr size_t kMaxColumns = 3;

// Colours that stay apart for colour-blind readers (Okabe and Ito, "Color universal design", 2008);
// grey is for the bounds.
constexpr std::array<std::string_view, 7> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                      "#e69f00", "#56b4e9", "#000000"};
constexpr std::array<std::string_view, 4> kDashes = {"", "7 3", "2 3", "8 3 2 3"};
constexpr std::string_view kBoundColour = "#8a8a8a";

enum class Marker { kNone, kCircle, kSquare, kTriangle, kDiamond };
// By how often the colours have been used up.
constexpr std::array<Marker, 4> kMarkers = {Marker::kCircle, Marker::kSquare, Marker::kTriangle,
                                            Marker::kDiamond};

struct Style {
  std::string_view colour;
  std::string_view dash;
  double width = 2;
  Marker marker = Marker::kCircle;
};

struct Point {
  double x = 0;
  double hit_rate = 0;
  auto operator<=>(const Point& other) const = default;
};

// A line of the legend, and of every panel that has points for it.
struct Series {
  std::string name;
  Style style;
};

struct Panel {
  std::string title;
  std::vector<std::vector<Point>> points;  // by series
};

struct Chart {
  std::vector<Series> series;
  std::vector<Panel> panels;
  double max_x = 1;
};

// Index of `name` in `names`, added if it is new.
size_t index_of(std::vector<std::string>& names, const std::string& name) {
  const auto found = std::ranges::find(names, name);
  const auto index = static_cast<size_t>(found - names.begin());
  if (found == names.end()) names.push_back(name);
  return index;
}

bool is_bound(const std::string& policy) { return policy.starts_with("belady"); }

Chart chart_of(std::span<const sim::MatrixRow> rows, ChartAxis axis) {
  Chart chart;
  chart.series = {{"belady (may decline)", {kBoundColour, "6 3", 1.6, Marker::kNone}},
                  {"belady-demand", {kBoundColour, "2 2", 1.6, Marker::kNone}}};
  std::vector<std::string> series_names = {chart.series[0].name, chart.series[1].name};
  std::vector<std::string> traces;
  std::vector<std::string> policies;
  std::vector<std::string> shares;
  for (const sim::MatrixRow& row : rows) {
    if (!is_bound(row.policy)) index_of(policies, row.policy);
    index_of(shares, share_text(row.share));
  }
  for (const sim::MatrixRow& row : rows) {
    const size_t panel = index_of(traces, row.trace);
    if (panel == chart.panels.size())
      chart.panels.push_back({.title = trace_name(row.trace), .points = {}});
    const auto add = [&](size_t series, double hit_rate) {
      auto& points = chart.panels[panel].points;
      if (points.size() <= series) points.resize(series + 1);
      const double x = axis == ChartAxis::kCachePercent ? row.cache_percent : row.cache_mib;
      points[series].push_back({x, hit_rate});
    };
    add(0, row.belady_hit_rate);
    add(1, row.belady_demand_hit_rate);
    if (is_bound(row.policy)) continue;
    const std::string share = share_text(row.share);
    const size_t series =
        index_of(series_names, shares.size() > 1 ? row.policy + ", share " + share : row.policy);
    if (series == chart.series.size()) {
      const size_t policy = index_of(policies, row.policy);
      chart.series.push_back({series_names.back(),
                              {.colour = kColours[policy % kColours.size()],
                               .dash = kDashes[index_of(shares, share) % kDashes.size()],
                               .marker = kMarkers[policy / kColours.size() % kMarkers.size()]}});
    }
    add(series, row.result.hit_rate());
  }
  chart.max_x = 0;
  for (Panel& panel : chart.panels) {
    for (auto& points : panel.points) {
      std::sort(points.begin(), points.end());
      // A bound comes with every policy.
      points.erase(std::unique(points.begin(), points.end()), points.end());
      if (!points.empty()) chart.max_x = std::max(chart.max_x, points.back().x);
    }
  }
  if (chart.max_x <= 0) chart.max_x = 1;
  return chart;
}

class Drawing {
 public:
  Drawing(const Chart& chart, ChartAxis axis) : chart_(chart), axis_(axis) {}

  std::string document();

 private:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }
  double x_of(double x) const {
    return left_ + kLeft + (kPanelWidth - kLeft - kRight) * x / chart_.max_x;
  }
  double y_of(double hit_rate) const {
    return top_ + kPanelHeight - kBottom - (kPanelHeight - kTop - kBottom) * hit_rate;
  }
  void text(double x, double y, std::string_view anchor, std::string_view words,
            std::string_view extra = "") {
    add("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, extra,
        escaped_html(words));
  }
  void line(double x1, double y1, double x2, double y2, std::string_view colour, double width,
            std::string_view dash = "") {
    add("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" "
        "stroke-width=\"{}\"{}/>\n",
        x1, y1, x2, y2, colour, width,
        dash.empty() ? std::string() : fmt::format(" stroke-dasharray=\"{}\"", dash));
  }
  void marker(double x, double y, const Style& style);
  void axes();
  void points(const std::vector<Point>& points, const Style& style);
  void panel(const Panel& panel);
  double legend(double width, double y);

  const Chart& chart_;
  ChartAxis axis_;
  std::string out_;
  double left_ = 0;  // of the present panel
  double top_ = 0;
};

void Drawing::marker(double x, double y, const Style& style) {
  switch (style.marker) {
    case Marker::kNone:
      break;
    case Marker::kCircle:
      add("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.8\" fill=\"{}\"/>\n", x, y, style.colour);
      break;
    case Marker::kSquare:
      add("<path d=\"M{:.1f} {:.1f}h6v6h-6z\" fill=\"{}\"/>\n", x - 3, y - 3, style.colour);
      break;
    case Marker::kTriangle:
      add("<path d=\"M{:.1f} {:.1f}l4 7h-8z\" fill=\"{}\"/>\n", x, y - 4, style.colour);
      break;
    case Marker::kDiamond:
      add("<path d=\"M{:.1f} {:.1f}l4 4l-4 4l-4 -4z\" fill=\"{}\"/>\n", x, y - 4, style.colour);
      break;
  }
}

void Drawing::axes() {
  constexpr std::string_view kGrid = "#e3e3e3";
  const double bottom = y_of(0);
  for (int percent = 0; percent <= 100; percent += 20) {
    const double y = y_of(percent / 100.0);
    line(x_of(0), y, x_of(chart_.max_x), y, percent == 0 ? "#444444" : kGrid, 1);
    text(x_of(0) - 7, y + 4, "end", fmt::format("{}", percent));
  }
  const double step = tick_step(chart_.max_x, 6);
  for (int i = 0; i * step <= chart_.max_x * 1.0001; ++i) {
    const double x = x_of(i * step);
    line(x, y_of(1), x, bottom, i == 0 ? "#444444" : kGrid, 1);
    text(x, bottom + 16, "middle", fmt::format("{:g}", i * step));
  }
  text((x_of(0) + x_of(chart_.max_x)) / 2, bottom + 35, "middle",
       axis_ == ChartAxis::kCachePercent ? "cache, % of the bytes of all experts" : "cache, MiB");
  const double middle = (y_of(0) + y_of(1)) / 2;
  text(left_ + 18, middle, "middle", "hit rate, %",
       fmt::format(" transform=\"rotate(-90 {:.1f} {:.1f})\"", left_ + 18, middle));
}

void Drawing::points(const std::vector<Point>& points, const Style& style) {
  if (points.empty()) return;
  if (points.size() > 1) {
    add("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"{}\"{} points=\"", style.colour,
        style.width,
        style.dash.empty() ? std::string() : fmt::format(" stroke-dasharray=\"{}\"", style.dash));
    for (const Point& point : points) {
      add("{:.1f},{:.1f} ", x_of(point.x), y_of(point.hit_rate));
    }
    add("\"/>\n");
  }
  for (const Point& point : points) {
    // A bound with one size has no line to be seen by.
    Style shown = style;
    if (points.size() == 1 && style.marker == Marker::kNone) shown.marker = Marker::kCircle;
    marker(x_of(point.x), y_of(point.hit_rate), shown);
  }
}

void Drawing::panel(const Panel& panel) {
  text(x_of(0), top_ + 20, "start", panel.title, " font-weight=\"bold\" font-size=\"13\"");
  axes();
  // The first policy was named first for a reason, so it is drawn last, over the others.
  for (size_t s = panel.points.size(); s > 0; --s) {
    points(panel.points[s - 1], chart_.series[s - 1].style);
  }
}

// Draws the legend from `y` down and returns where it ends.
double Drawing::legend(double width, double y) {
  double x = kMargin;
  for (const Series& series : chart_.series) {
    const double needed = kLegendSample + kCharacter * static_cast<double>(series.name.size()) + 22;
    if (x > kMargin && x + needed > width - kMargin) {
      x = kMargin;
      y += kLegendLine;
    }
    line(x, y - 4, x + kLegendSample - 6, y - 4, series.style.colour, series.style.width,
         series.style.dash);
    marker(x + (kLegendSample - 6) / 2, y - 4, series.style);
    text(x + kLegendSample, y, "start", series.name);
    x += needed;
  }
  return y + kLegendLine;
}

std::string Drawing::document() {
  const size_t n_columns = std::clamp<size_t>(chart_.panels.size(), 1, kMaxColumns);
  const double width = 2 * kMargin + kPanelWidth * static_cast<double>(n_columns);
  for (size_t p = 0; p < chart_.panels.size(); ++p) {
    const size_t row = p / n_columns;
    left_ = kMargin + kPanelWidth * static_cast<double>(p % n_columns);
    top_ = kMargin + kPanelHeight * static_cast<double>(row);
    panel(chart_.panels[p]);
  }
  const double height = legend(width, top_ + kPanelHeight + kLegendLine);
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"Helvetica, Arial, sans-serif\" "
      "font-size=\"12\" fill=\"#222222\">\n"
      "<title>Hit rate over cache size</title>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{2}</svg>\n",
      width, height, out_);
}

}  // namespace

std::string replay_chart(std::span<const sim::MatrixRow> rows, ChartAxis axis) {
  const Chart chart = chart_of(rows, axis);
  return Drawing(chart, axis).document();
}

}  // namespace hotset::report
