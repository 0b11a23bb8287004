#include "hotset/report/line_chart.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <string_view>

namespace hotset::report {
namespace {

// SVG user units, which a browser shows as pixels.
constexpr double kWidth = 720;
constexpr double kHeight = 340;
constexpr double kLeft = 64;
constexpr double kRight = 150;  // names of the lines
constexpr double kTop = 34;
constexpr double kBottom = 46;
constexpr double kNameHeight = 17;

// Colours that stay apart for colour-blind readers (Okabe and Ito, "Color universal design", 2008),
// and on white and black.
constexpr std::array<std::string_view, 6> kColours = {"#0072b2", "#d55e00", "#009e73",
                                                      "#cc79a7", "#b07d00", "#56b4e9"};
constexpr std::string_view kGrey = "#8a8a8a";

class Drawing {
 public:
  explicit Drawing(const LineChart& chart) : chart_(chart) {
    for (const ChartSeries& series : chart.series) {
      for (const auto& [x, y] : series.points) {
        max_x_ = std::max(max_x_, x);
        max_y_ = std::max(max_y_, y);
      }
    }
    if (max_x_ <= 0) max_x_ = 1;
    if (max_y_ <= 0) max_y_ = 1;
    max_y_ *= 1.05;
  }

  std::string document() {
    axes();
    double name_y = kTop + 8;
    for (const ChartSeries& series : chart_.series) draw(series, name_y);
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" "
        "aria-label=\"{}\" font-size=\"12\" fill=\"currentColor\">\n{}</svg>\n",
        kWidth, kHeight, escaped_html(chart_.title), out_);
  }

 private:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }
  double x_of(double x) const { return kLeft + (kWidth - kLeft - kRight) * x / max_x_; }
  double y_of(double y) const {
    return kHeight - kBottom - (kHeight - kTop - kBottom) * y / max_y_;
  }
  void text(double x, double y, std::string_view anchor, const std::string& words,
            const std::string& extra = "") {
    add("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, extra,
        escaped_html(words));
  }
  void grid_line(double x1, double y1, double x2, double y2, bool is_axis) {
    add("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"currentColor\" "
        "stroke-opacity=\"{}\"/>\n",
        x1, y1, x2, y2, is_axis ? "0.7" : "0.15");
  }
  void axes();
  void draw(const ChartSeries& series, double& name_y);

  const LineChart& chart_;
  std::string out_;
  double max_x_ = 0;
  double max_y_ = 0;
};

void Drawing::axes() {
  text(kLeft, 18, "start", chart_.title, " font-weight=\"bold\" font-size=\"13\"");
  const double y_step = tick_step(max_y_, 5);
  for (int i = 0; i * y_step <= max_y_; ++i) {
    const double y = y_of(i * y_step);
    grid_line(x_of(0), y, x_of(max_x_), y, i == 0);
    text(kLeft - 7, y + 4, "end", fmt::format("{:g}", i * y_step));
  }
  const double x_step = tick_step(max_x_, 7);
  for (int i = 0; i * x_step <= max_x_ * 1.0001; ++i) {
    const double x = x_of(i * x_step);
    grid_line(x, y_of(max_y_), x, y_of(0), i == 0);
    text(x, y_of(0) + 16, "middle", fmt::format("{:g}", i * x_step));
  }
  text((x_of(0) + x_of(max_x_)) / 2, kHeight - 10, "middle", chart_.x_label);
  const double middle = (y_of(0) + y_of(max_y_)) / 2;
  text(16, middle, "middle", chart_.y_label,
       fmt::format(" transform=\"rotate(-90 16 {:.1f})\"", middle));
}

void Drawing::draw(const ChartSeries& series, double& name_y) {
  if (series.points.empty()) return;
  const std::string_view colour =
      series.colour < 0 ? kGrey : kColours[static_cast<size_t>(series.colour) % kColours.size()];
  const std::string_view dash = series.dashed ? " stroke-dasharray=\"6 4\"" : "";
  if (!series.only_points) {
    add("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{} points=\"", colour, dash);
    for (const auto& [x, y] : series.points) add("{:.1f},{:.1f} ", x_of(x), y_of(y));
    add("\"/>\n");
  }
  for (const auto& [x, y] : series.points) {
    add("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" fill=\"{}\"><title>{}: {:g}, {:.4g}</title>"
        "</circle>\n",
        x_of(x), y_of(y), series.only_points ? "4.5" : "2.5", colour, escaped_html(series.name), x,
        y);
  }
  const double left = kWidth - kRight + 12;
  if (!series.only_points) {
    add("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" "
        "stroke-width=\"2\"{}/>\n",
        left, name_y, left + 22, name_y, colour, dash);
  } else {
    add("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4.5\" fill=\"{}\"/>\n", left + 11, name_y, colour);
  }
  text(left + 28, name_y + 4, "start", series.name);
  name_y += kNameHeight;
}

}  // namespace

double tick_step(double range, int n) {
  const double raw = range / n;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw) return factor * power;
  }
  return 10 * power;
}

std::string escaped_html(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        // Control characters are not allowed in XML.
        result += static_cast<unsigned char>(c) < 0x20 && c != '\n' ? '?' : c;
    }
  }
  return result;
}

std::string line_chart_svg(const LineChart& chart) { return Drawing(chart).document(); }

}  // namespace hotset::report
