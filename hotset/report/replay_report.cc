#include "hotset/report/replay_report.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "hotset/base/printable.h"
#include "hotset/report/text_table.h"

namespace hotset::report {
namespace {

// More groups than this are shown by the sum of their slots.
constexpr size_t kMaxGroupsShown = 3;

std::string slots_text(const std::vector<int64_t>& slots) {
  if (slots.size() <= kMaxGroupsShown) return fmt::format("{}", fmt::join(slots, "+"));
  return fmt::format("{} in {} groups", std::accumulate(slots.begin(), slots.end(), int64_t{0}),
                     slots.size());
}

using Cells = std::vector<std::string>;

const Cells kHeads = {"trace", "MiB",       "%",         "slots",        "share",     "policy",
                      "hit %", "to Belady", "to demand", "upload GiB/t", "cpu GiB/t", "ms/t"};

Cells cells_of(const sim::MatrixRow& row) {
  const sim::ReplayResult& result = row.result;
  const double hit_rate = result.hit_rate();
  return {printable(trace_name(row.trace)),
          fmt::format("{:.6g}", std::round(row.cache_mib * 10) / 10),
          fmt::format("{:.3g}", row.cache_percent),
          slots_text(result.slots),
          share_text(row.share),
          row.policy,
          fmt::format("{:.2f}", 100 * hit_rate),
          fmt::format("{:.2f}", 100 * (row.belady_hit_rate - hit_rate)),
          fmt::format("{:.2f}", 100 * (row.belady_demand_hit_rate - hit_rate)),
          fmt::format("{:.4g}", result.upload_gib_per_token()),
          fmt::format("{:.4g}", result.cpu_gib_per_token()),
          fmt::format("{:.4g}", result.modelled_ms_per_token())};
}

TextTable table_of(std::span<const sim::MatrixRow> rows) {
  TextTable table{.heads = kHeads, .is_word = std::vector<bool>(kHeads.size()), .rows = {}};
  for (const size_t column : {0, 5}) table.is_word[column] = true;
  for (const sim::MatrixRow& row : rows) table.rows.push_back(cells_of(row));
  return table;
}

}  // namespace

std::string share_text(lanes::CpuShare share) {
  return share ? fmt::format("{:g}", *share) : "auto";
}

nlohmann::ordered_json share_json(lanes::CpuShare share) {
  return share ? nlohmann::ordered_json(*share) : nlohmann::ordered_json("auto");
}

std::string trace_name(const std::string& path) {
  return std::filesystem::path(path).stem().string();
}

std::string replay_table(std::span<const sim::MatrixRow> rows) { return table_of(rows).text(); }

std::string replay_legend(const sim::MatrixOptions& options) {
  const lanes::LaneRates rates = options.rules.rates.value_or(lanes::kTypicalRates);
  return fmt::format(
      "The first {} tokens of each layer are not counted. %: of the bytes of all experts. Belady: "
      "the best that any policy\ncan do with these slots if it may decline to insert; demand: if "
      "it "
      "must insert every miss; both in points, at share 0.\nms/t: time of the experts by a model "
      "with a link of {:g} GB/s, a CPU of {:g} GB/s and a device of {:g} GB/s.\n",
      options.counted.n_skipped(), rates.link_gb_per_s, rates.cpu_gb_per_s, rates.device_gb_per_s);
}

std::string replay_markdown(std::span<const sim::MatrixRow> rows) {
  return table_of(rows).markdown();
}

std::string replay_csv(std::span<const sim::MatrixRow> rows) {
  std::string text =
      "trace,policy,cache_mib,cache_percent,share,slots,lookups,tokens,hits,uploads,cpu,evictions,"
      "fills,bypassed_lookups,hit_rate,upload_gib_per_token,cpu_gib_per_token,belady_hit_rate,"
      "belady_demand_hit_rate,modelled_ms_per_token\n";
  for (const sim::MatrixRow& row : rows) {
    const sim::ReplayResult& result = row.result;
    text += fmt::format("{},{},{},{},{},{},", csv_field(row.trace), csv_field(row.policy),
                        row.cache_mib, row.cache_percent, share_text(row.share),
                        fmt::join(result.slots, " "));
    text += fmt::format("{},{},{},{},{},{},{},{},", result.counts.lookups, result.tokens,
                        result.counts.hits, result.uploads(), result.counts.cpu,
                        result.counts.evictions, result.counts.fills, result.bypassed_lookups);
    text += fmt::format("{},{},{},{},{},{}\n", result.hit_rate(), result.upload_gib_per_token(),
                        result.cpu_gib_per_token(), row.belady_hit_rate, row.belady_demand_hit_rate,
                        result.modelled_ms_per_token());
  }
  return text;
}

std::string replay_json(std::span<const sim::MatrixRow> rows) {
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  for (const sim::MatrixRow& row : rows) {
    const sim::ReplayResult& result = row.result;
    nlohmann::ordered_json object;
    object["trace"] = row.trace;
    object["policy"] = row.policy;
    object["cache_mib"] = row.cache_mib;
    object["share"] = share_json(row.share);
    object["slots"] = result.slots;
    object["lookups"] = result.counts.lookups;
    object["hits"] = result.counts.hits;
    object["uploads"] = result.uploads();
    object["cpu"] = result.counts.cpu;
    object["evictions"] = result.counts.evictions;
    object["bypassed_lookups"] = result.bypassed_lookups;
    object["hit_rate"] = result.hit_rate();
    object["upload_gib_per_token"] = result.upload_gib_per_token();
    object["cpu_gib_per_token"] = result.cpu_gib_per_token();
    object["belady_hit_rate"] = row.belady_hit_rate;
    array.push_back(std::move(object));
  }
  // A path need not be UTF-8; JSON must be.
  return array.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace hotset::report
