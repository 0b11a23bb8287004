#include "hotset/report/cache_report.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace hotset::report {
namespace {

using Cells = std::vector<std::string>;

// A lane's time, which is not known everywhere.
std::string us_text(double us) { return us > 0 ? fmt::format("{:.0f}", us) : "-"; }

struct Column {
  const char* head;
  std::string (*text)(const cache::CacheCounts&);
};
template <auto member>
std::string count_text(const cache::CacheCounts& counts) {
  if constexpr (requires { (counts.*member).mib(); }) {
    return fmt::format("{:.1f}", (counts.*member).mib());
  } else {
    return fmt::format("{}", counts.*member);
  }
}
constexpr std::array kColumns = {
    Column{"lookups", count_text<&cache::CacheCounts::lookups>},
    Column{"tokens", count_text<&cache::CacheCounts::tokens>},
    Column{"hit %",
           [](const cache::CacheCounts& c) { return fmt::format("{:.2f}", 100 * c.hit_rate()); }},
    Column{"hits", count_text<&cache::CacheCounts::hits>},
    Column{"uploads", count_text<&cache::CacheCounts::uploads>},
    Column{"cpu", count_text<&cache::CacheCounts::cpu>},
    Column{"streamed", count_text<&cache::CacheCounts::streamed>},
    Column{"fills", count_text<&cache::CacheCounts::fills>},
    Column{"entered", count_text<&cache::CacheCounts::fills_entered>},
    Column{"evicted", count_text<&cache::CacheCounts::evictions>},
    Column{"up MiB", count_text<&cache::CacheCounts::uploaded_bytes>},
    Column{"fill MiB", count_text<&cache::CacheCounts::filled_bytes>},
    Column{"cpu MiB", count_text<&cache::CacheCounts::cpu_bytes>},
    Column{"up us", [](const cache::CacheCounts& c) { return us_text(c.upload_us()); }},
    Column{"cpu us", [](const cache::CacheCounts& c) { return us_text(c.cpu_us); }},
    Column{"wait us", [](const cache::CacheCounts& c) { return us_text(c.wait_us); }},
};

Cells heads() {
  Cells cells = {"layer", "batch"};
  for (const Column& column : kColumns) cells.emplace_back(column.head);
  return cells;
}

Cells cells_of(std::string layer, std::string_view batch, const cache::CacheCounts& counts) {
  Cells cells = {std::move(layer), std::string(batch)};
  for (const Column& column : kColumns) cells.push_back(column.text(counts));
  return cells;
}

std::string aligned(const std::vector<Cells>& lines) {
  std::vector<size_t> widths(lines.front().size());
  for (const Cells& line : lines) {
    for (size_t c = 0; c < line.size(); ++c) widths[c] = std::max(widths[c], line[c].size());
  }
  std::string text;
  for (const Cells& line : lines) {
    for (size_t c = 0; c < line.size(); ++c) {
      text += fmt::format("{:>{}}{}", line[c], widths[c], c + 1 < line.size() ? "  " : "\n");
    }
  }
  return text;
}

// Tokens of the layer that served the most.
uint64_t most_tokens(const CacheReport& report) {
  uint64_t most = 0;
  for (size_t i = 0; i < report.rows.size();) {
    uint64_t n = 0;
    const int32_t layer = report.rows[i].layer;
    for (; i < report.rows.size() && report.rows[i].layer == layer; ++i) {
      n += report.rows[i].counts.tokens;
    }
    most = std::max(most, n);
  }
  return most;
}

// The part of the misses that the CPU lane took, outside prefills.
double cpu_part(const cache::CacheCounts& counts) {
  const uint64_t n_misses = counts.cpu + counts.uploads;
  return n_misses > 0 ? static_cast<double>(counts.cpu) / static_cast<double>(n_misses) : 0;
}

// "splits of the lookups: batch 1: 4% hits, 96% both; ...": how many of each class's lookups were
// `count` of which kind.
template <typename Kind>
std::string parts_text(std::string_view heading, const CacheReport& report, int n_kinds,
                       uint64_t cache::CacheCounts::* (*count)(Kind),
                       std::string_view (*name)(Kind)) {
  std::string text;
  for (size_t b = 0; b < report.classes.size(); ++b) {
    const cache::CacheCounts& counts = report.classes[b];
    if (counts.lookups == 0) continue;
    text += fmt::format("{} batch {}:", text.empty() ? "" : ";",
                        cache::batch_class_name(static_cast<cache::BatchClass>(b)));
    std::string_view separator;
    for (int i = 0; i < n_kinds; ++i) {
      const auto kind = static_cast<Kind>(i);
      const uint64_t n = counts.*count(kind);
      if (n == 0) continue;
      text += fmt::format("{} {:.0f}% {}", separator,
                          100 * static_cast<double>(n) / static_cast<double>(counts.lookups),
                          name(kind));
      separator = ",";
    }
  }
  return fmt::format("{}:{}", heading, text);
}

std::string reasons_text(const CacheReport& report) {
  std::string text = parts_text("splits of the lookups", report, lanes::kSplits, lanes::split_count,
                                lanes::split_name) +
                     "\n" +
                     parts_text("decided by", report, lanes::kSplitReasons, lanes::reason_count,
                                lanes::reason_name);
  for (const GroupSplit& split : report.splits) {
    text += fmt::format("\nlayers {} to {}: {}", split.first_layer, split.last_layer, split.reason);
  }
  return text;
}

std::string replayed_text(const CacheReport& report) {
  if (!report.replayed) return "";
  const ReplayedRouting& r = *report.replayed;
  const double points = 100 * (r.belady_hit_rate - r.hit_rate);
  if (!r.was_cut) {
    return fmt::format("; Belady with the same slots {:.2f}%, {:.2f} points more",
                       100 * r.belady_hit_rate, points);
  }
  return fmt::format(
      "; the last {} lookups alone, from an empty cache: {:.2f}%, Belady {:.2f}%, {:.2f} points "
      "more (earlier ones were not kept)",
      r.n_lookups, 100 * r.hit_rate, 100 * r.belady_hit_rate, points);
}

std::string summary(const CacheReport& report) {
  const cache::CacheCounts& c = report.total;
  return fmt::format(
      "hit rate {:.2f}% of {} experts in {} lookups, {} tokens{}; uploaded {}, filled {}, read by "
      "the CPU {}, which took {:.1f}% of the misses",
      100 * c.hit_rate(), c.selected, c.lookups, most_tokens(report), replayed_text(report),
      to_string(c.uploaded_bytes), to_string(c.filled_bytes), to_string(c.cpu_bytes),
      100 * cpu_part(c));
}

}  // namespace

CacheReport cache_report(const engine::Engine& engine) {
  const engine::CachedExperts& cache = *engine.cache();
  CacheReport report;
  for (int32_t layer = 0; layer < engine.spec().n_layer; ++layer) {
    for (int i = 0; i < cache::kBatchClasses; ++i) {
      const auto batch = static_cast<cache::BatchClass>(i);
      const CacheRow row{
          .layer = layer, .batch = batch, .counts = cache.core().counts(layer)[batch]};
      if (row.counts == cache::CacheCounts{}) continue;
      report.rows.push_back(row);
      report.classes[i] += row.counts;
      report.total += row.counts;
    }
  }
  for (int32_t group = 0; group < cache.core().n_groups(); ++group) {
    const int64_t n_slots = cache.core().slots(group).n_slots();
    if (n_slots == 0 || n_slots == cache.core().spec(group).n_experts()) continue;
    report.splits.push_back(group_split(cache, group));
  }
  return report;
}

GroupSplit group_split(const engine::CachedExperts& cache, int32_t group) {
  const cache::GroupSpec& spec = cache.core().spec(group);
  const lanes::LaneCosts& costs = cache.costs(group);
  GroupSplit split{
      .first_layer = spec.layers.front(),
      .last_layer = spec.layers.back(),
      .upload_us = costs.upload_solo_us.at(static_cast<double>(spec.bytes_per_expert().count)),
      .cpu_us = costs.cpu_solo.turn_us + costs.cpu_solo.expert_us.at(1)};
  if (!cache.why_unused().empty()) {
    split.reason = fmt::format("the CPU computes everything: {}", cache.why_unused());
    return split;
  }
  if (cache.options().rules.cpu_share) {
    split.reason =
        fmt::format("the CPU takes {:g} of the misses, as asked", *cache.options().rules.cpu_share);
    return split;
  }
  split.reason = fmt::format(
      "auto: for each lookup the split that should be done first; an expert alone takes {:.0f} us "
      "to upload, {:.0f} us on the CPU and, once resident, {:.0f} us on the device",
      split.upload_us, split.cpu_us, costs.pairs.turn_us + costs.pairs.expert_us.at(1));
  if (cache.use() == lanes::CacheUse::kHits) {
    split.reason += "; no uploads now, because the cache was slower than the CPU alone";
  } else if (cache.use() == lanes::CacheUse::kNone) {
    split.reason +=
        "; now the CPU computes everything, because resident experts were slower on the device";
  }
  return split;
}

sim::ReplayOptions replay_options(const engine::CachedExperts& cache) {
  sim::ReplayOptions options{.rules = cache.options().rules, .counted = {.skip_tokens = 0}};
  for (int32_t g = 0; g < cache.core().n_groups(); ++g) {
    options.slots.push_back(cache.core().slots(g).n_slots());
  }
  return options;
}

Result<ReplayedRouting> beside_belady(const sim::TraceOpener& open, sim::ReplayOptions options,
                                      std::optional<double> known_hit_rate) {
  if (!known_hit_rate) {
    HOTSET_TRY(const sim::ReplayResult own, sim::replay(open, options));
    known_hit_rate = own.hit_rate();
  }
  options.rules.policy = "belady";
  options.rules.cpu_share = 0;
  HOTSET_TRY(const sim::ReplayResult belady, sim::replay(open, options));
  return ReplayedRouting{.hit_rate = *known_hit_rate,
                         .belady_hit_rate = belady.hit_rate(),
                         .n_lookups = static_cast<int64_t>(belady.counts.lookups)};
}

Result<std::optional<ReplayedRouting>> replay_kept(const engine::Engine& engine,
                                                   const engine::RoutingRecorder& recorder) {
  if (recorder.n_kept() == 0) return std::nullopt;
  const engine::CachedExperts& cache = *engine.cache();
  // What really was, where all of it was kept.
  std::optional<double> hit_rate;
  if (!recorder.was_cut()) hit_rate = cache.core().total_counts().hit_rate();
  HOTSET_TRY(ReplayedRouting replayed,
             beside_belady([&] { return recorder.kept(); }, replay_options(cache), hit_rate));
  replayed.was_cut = recorder.was_cut();
  return replayed;
}

std::string report_text(const CacheReport& report) {
  std::vector<Cells> lines = {heads()};
  for (const CacheRow& row : report.rows) {
    lines.push_back(
        cells_of(fmt::format("{}", row.layer), cache::batch_class_name(row.batch), row.counts));
  }
  for (size_t i = 0; i < report.classes.size(); ++i) {
    if (report.classes[i].lookups == 0) continue;
    lines.push_back(cells_of("all", cache::batch_class_name(static_cast<cache::BatchClass>(i)),
                             report.classes[i]));
  }
  lines.push_back(cells_of("all", "all", report.total));
  return "what the expert cache did:\n" + aligned(lines) + reasons_text(report) + "\n" +
         summary(report);
}

}  // namespace hotset::report
