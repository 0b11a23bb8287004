#include "hotset/cli/replay_command.h"

#include <algorithm>
#include <charconv>
#include <system_error>
#include <utility>

#include "hotset/base/interrupt.h"
#include "hotset/base/progress_bar.h"
#include "hotset/base/text_file.h"
#include "hotset/measure/cache_flags.h"
#include "hotset/measure/thread_search.h"
#include "hotset/report/replay_chart.h"
#include "hotset/report/replay_report.h"

namespace hotset::cli {
namespace {

constexpr double kDefaultPercents[] = {5, 10, 20, 30, 40};

Result<lanes::CpuShare> parse_share(const std::string& text) {
  if (text == "auto") return lanes::CpuShare();
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--share: found \"{}\", expected a number from 0 to 1, or auto", text);
  }
  return lanes::CpuShare(value);
}

}  // namespace

Result<sim::MatrixOptions> matrix_options(const ReplayCommandOptions& options) {
  sim::MatrixOptions matrix = options.matrix;
  HOTSET_TRY(matrix.rules.cache_batch, measure::parse_batch(options.batch_text));
  for (const std::string& text : options.share_texts) {
    HOTSET_TRY(const lanes::CpuShare share, parse_share(text));
    matrix.shares.push_back(share);
  }
  for (const double mib : options.sizes_mib) {
    matrix.sizes.push_back({sim::CacheSize::Unit::kMib, mib});
  }
  for (const double percent : options.sizes_percent) {
    matrix.sizes.push_back({sim::CacheSize::Unit::kPercent, percent});
  }
  if (matrix.sizes.empty()) {
    for (const double percent : kDefaultPercents) {
      matrix.sizes.push_back({sim::CacheSize::Unit::kPercent, percent});
    }
  }
  return matrix;
}

Result<std::string> run_replay(const ReplayCommandOptions& options) {
  HOTSET_TRY(sim::MatrixOptions matrix, matrix_options(options));
  measure::warn_of_threads("--threads",
                           static_cast<int>(std::min<size_t>(matrix.n_workers, 1 << 20)));
  const InterruptScope interrupt;
  matrix.cancelled = &InterruptScope::flag();
  std::vector<sim::MatrixRow> rows;
  {
    ProgressBar bar("replay");
    matrix.progress = [&](double part) { bar.update(part); };
    HOTSET_TRY(rows, sim::replay_matrix(matrix));
  }
  if (!options.svg_path.empty()) {
    const report::ChartAxis axis =
        options.sizes_mib.empty() ? report::ChartAxis::kCachePercent : report::ChartAxis::kCacheMib;
    HOTSET_RETURN_IF_ERROR(write_text_file(options.svg_path, report::replay_chart(rows, axis)));
  }
  switch (options.format) {
    case ReplayFormat::kCsv:
      return report::replay_csv(rows);
    case ReplayFormat::kMarkdown:
      return report::replay_markdown(rows);
    case ReplayFormat::kJson:
      return report::replay_json(rows);
    case ReplayFormat::kTable:
      break;
  }
  return report::replay_table(rows) + "\n" + report::replay_legend(matrix);
}

}  // namespace hotset::cli
