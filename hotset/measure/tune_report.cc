#include "hotset/measure/tune_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "hotset/report/line_chart.h"
#include "hotset/report/replay_report.h"
#include "hotset/report/text_table.h"

namespace hotset::measure {
namespace {

using Json = nlohmann::ordered_json;

std::string speed_text(double tokens_per_s) {
  return tokens_per_s >= 100 ? fmt::format("{:.0f}", tokens_per_s)
                             : fmt::format("{:.2f}", tokens_per_s);
}

std::string threads_text(int n) { return fmt::format("{} thread{}", n, n == 1 ? "" : "s"); }

double per_second(double ms) { return ms > 0 ? 1000 / ms : 0; }

// A section of the report: lines, then perhaps a table.
struct Section {
  std::string title;
  std::vector<std::string> lines;
  report::TextTable table = {};
};

Section setting_section(const TuneRecord& r) {
  Section section{.title = "What was measured", .lines = {}};
  section.lines.push_back(fmt::format("model: {}, {} of experts; device: {}, up to {} for a cache",
                                      r.model, to_string(r.expert_bytes), r.device,
                                      to_string(r.most_cache)));
  section.lines.push_back("machine: " + r.machine);
  section.lines.push_back(
      fmt::format("tokens: {}, {} of each run counted; {}load mode {}", r.tokens, r.n_tokens,
                  r.is_server ? "" : threads_text(r.n_threads) + ", ", r.load_mode));
  if (!r.thread_trials.empty()) {
    std::string speeds;
    for (const ThreadTrial& trial : r.thread_trials) {
      speeds += fmt::format("{}{} {}", speeds.empty() ? "" : ", ", trial.n_threads,
                            speed_text(per_second(trial.ms_per_token)));
    }
    section.lines.push_back(fmt::format("tokens/s by threads, most cache, share auto: {}; {} {}",
                                        speeds, r.n_threads,
                                        r.n_threads == 1 ? "is enough" : "are enough"));
  }
  if (!r.is_server) {
    section.lines.push_back(
        fmt::format("rates at the start: link {:.2f} GB/s, CPU {:.2f} GB/s, device {:.2f} GB/s "
                    "(expert by expert)",
                    r.rates.link_gb_per_s, r.rates.cpu_gb_per_s, r.rates.device_gb_per_s));
  }
  if (r.no_cache_ms > 0) {
    section.lines.push_back(fmt::format("without a cache: {} tokens/s, {:.3f} ms per token",
                                        speed_text(per_second(r.no_cache_ms)), r.no_cache_ms));
  }
  if (r.prefill_tokens_per_s > 0) {
    section.lines.push_back(
        fmt::format("prompts: {} tokens/s", speed_text(r.prefill_tokens_per_s)));
  }
  return section;
}

Section runs_section(const TuneOutcome& outcome) {
  const TuneRecord& r = outcome.record;
  Section section{
      .title = "Runs",
      .lines = {},
      .table = {.heads = {"cache MiB", "share", "tokens/s", "ms/token", "fitted ms", "error %",
                          "hit %", "replayed hit %", "up MiB/token", "CPU MiB/token"},
                .is_word = std::vector<bool>(10, false),
                .rows = {}}};
  const bool has_checks = outcome.result && outcome.result->checks.size() == r.runs.size();
  for (size_t i = 0; i < r.runs.size(); ++i) {
    const sim::TuneRun& run = r.runs[i];
    std::string fitted = "-", error = "-", replayed = "-";
    if (has_checks) {
      const double ms = [&] {
        const sim::TuneResult& result = *outcome.result;
        if (run.share) {
          return result.fit->model.ms_per_token(run.up_gib, run.cpu_gib, *run.share);
        }
        if (!result.auto_line) return 0.0;
        return result.auto_line->base_ms +
               result.auto_line->ms_per_gib * (run.up_gib + run.cpu_gib);
      }();
      if (ms > 0) {
        fitted = fmt::format("{:.3f}", ms);
        error = fmt::format("{:+.1f}", 100 * (ms / run.ms_per_token - 1));
      }
      replayed = fmt::format("{:.1f}", 100 * outcome.result->checks[i].replayed_hit_rate);
    }
    section.table.rows.push_back(
        {cache_mib_text(run.cache), report::share_text(run.share),
         speed_text(per_second(run.ms_per_token)), fmt::format("{:.3f}", run.ms_per_token), fitted,
         error, fmt::format("{:.1f}", 100 * run.hit_rate), replayed,
         fmt::format("{:.4f}", 1024 * run.up_gib), fmt::format("{:.4f}", 1024 * run.cpu_gib)});
  }
  const bool is_unused = std::ranges::any_of(r.runs, [](const sim::TuneRun& run) {
    return !run.share && run.hit_rate == 0 && run.up_gib == 0 && run.cpu_gib == 0;
  });
  if (is_unused) {
    section.lines.push_back(
        "share auto left the cache unused where it has no hits: the device would not compute "
        "resident experts faster than the CPU");
  }
  if (outcome.result && outcome.result->fit) {
    const sim::TimeModelFit& fit = *outcome.result->fit;
    section.lines.push_back(fit.report({}).front() +
                            fmt::format("; worst error {:.1f}%", 100 * fit.worst_error));
    if (!fit.has_overlap)
      section.lines.push_back("without the overlap term: " + fit.why_no_overlap);
    if (const auto& line = outcome.result->auto_line) {
      section.lines.push_back(
          fmt::format("share auto: ms/token = {:.3f} + {:.3f} * (up_gib + cpu_gib)", line->base_ms,
                      line->ms_per_gib));
    }
  }
  return section;
}

Section table_section(const sim::TuneResult& result) {
  Section section{.title = "Predicted tokens/s, by cache size and CPU share", .lines = {}};
  std::vector<lanes::CpuShare> shares;
  for (const auto& p : result.table) {
    if (std::ranges::find(shares, p.share) == shares.end()) shares.push_back(p.share);
  }
  report::TextTable& table = section.table;
  table.heads = {"cache MiB", "hit %"};
  for (const auto& share : shares) table.heads.push_back(report::share_text(share));
  table.heads.insert(table.heads.end(), {"whole layers", "their hit %", "their tokens/s"});
  table.is_word.assign(table.heads.size(), false);
  size_t at = 0;
  for (const sim::WholeLayers& layers : result.layers) {
    std::vector<std::string> row = {cache_mib_text(layers.cache), ""};
    for (; at < result.table.size() && result.table[at].cache == layers.cache; ++at) {
      // Of the share that misses least by its own doing: 0.
      if (row[1].empty()) row[1] = fmt::format("{:.1f}", 100 * result.table[at].hit_rate);
      row.push_back(speed_text(result.table[at].tokens_per_s()));
    }
    row.push_back(fmt::format("{}", layers.n_layers));
    row.push_back(fmt::format("{:.1f}", 100 * layers.hit_rate));
    row.push_back(speed_text(layers.tokens_per_s()));
    table.rows.push_back(std::move(row));
  }
  section.lines.push_back(
      "hit %: replayed at share 0. Whole layers: the same memory spent on all experts of as many "
      "layers as it holds.");
  return section;
}

Section recommendation_section(const TuneOutcome& outcome) {
  Section section{.title = "Recommendation", .lines = {}};
  if (!outcome.chosen) {
    section.lines.push_back("none: " + outcome.why_not);
    return section;
  }
  const TuneChoice& c = *outcome.chosen;
  section.lines.push_back(tune_command_line(outcome));
  section.lines.push_back("why: " + outcome.why_chosen);
  const auto compared = [](const TuneChoice& choice) {
    return fmt::format("predicted {} tokens/s, measured {} ({:+.1f}%)",
                       speed_text(per_second(choice.predicted_ms)),
                       speed_text(per_second(choice.measured_ms)),
                       100 * (choice.measured_ms / choice.predicted_ms - 1));
  };
  if (c.predicted_ms > 0) {
    section.lines.push_back(compared(c));
  } else {
    section.lines.push_back(
        fmt::format("measured {} tokens/s", speed_text(per_second(c.measured_ms))));
  }
  if (outcome.predicted &&
      !(outcome.predicted->share == c.share && outcome.predicted->cache == c.cache)) {
    section.lines.push_back(fmt::format("share {}: {}",
                                        report::share_text(outcome.predicted->share),
                                        compared(*outcome.predicted)));
  }
  if (outcome.cpu_alone) {
    section.lines.push_back(fmt::format("the CPU alone (--device none, {}): {} tokens/s",
                                        threads_text(outcome.cpu_alone->n_threads),
                                        speed_text(per_second(outcome.cpu_alone->ms_per_token))));
  }
  if (!outcome.why_load_mode.empty() && !outcome.without_device) {
    std::string speeds;
    for (const LoadModeTrial& trial : outcome.load_mode_trials) {
      speeds += fmt::format("{}{} {}", speeds.empty() ? " (tokens/s: " : ", ", trial.mode,
                            speed_text(per_second(trial.ms_per_token)));
    }
    if (!speeds.empty()) speeds += ")";
    section.lines.push_back(
        fmt::format("load mode {}: {}{}", outcome.load_mode, outcome.why_load_mode, speeds));
  }
  if (outcome.record.no_cache_ms > 0 && c.cache > Bytes{}) {
    section.lines.push_back(fmt::format("{:.2f} times as fast as without a cache",
                                        outcome.record.no_cache_ms / c.measured_ms));
  }
  return section;
}

std::vector<Section> sections_of(const TuneOutcome& outcome) {
  std::vector<Section> sections = {setting_section(outcome.record)};
  if (!outcome.record.runs.empty()) sections.push_back(runs_section(outcome));
  if (outcome.result && !outcome.result->table.empty()) {
    sections.push_back(table_section(*outcome.result));
  }
  sections.push_back(recommendation_section(outcome));
  return sections;
}

std::string html_table(const report::TextTable& table) {
  std::string text = "<div class=\"scroll\"><table>\n<tr>";
  for (const std::string& head : table.heads) text += "<th>" + report::escaped_html(head) + "</th>";
  text += "</tr>\n";
  for (const auto& row : table.rows) {
    text += "<tr>";
    for (const std::string& cell : row) text += "<td>" + report::escaped_html(cell) + "</td>";
    text += "</tr>\n";
  }
  return text + "</table></div>\n";
}

double mib_of(Bytes size) { return size.mib(); }

std::string speed_chart(const TuneOutcome& outcome) {
  const sim::TuneResult& result = *outcome.result;
  report::LineChart chart{.title = "Tokens/s over cache size",
                          .x_label = "cache, MiB",
                          .y_label = "tokens/s",
                          .series = {}};
  int colour = 0;
  for (const double share : {0.0, 0.3, 0.5, 0.7, 1.0, -1.0}) {
    report::ChartSeries series{.name = share < 0 ? "share auto" : fmt::format("share {:g}", share),
                               .points = {},
                               .colour = colour++};
    for (const auto& p : result.table) {
      const bool wanted = share < 0 ? !p.share : p.share && std::abs(*p.share - share) < 1e-9;
      if (wanted) series.points.emplace_back(mib_of(p.cache), p.tokens_per_s());
    }
    chart.series.push_back(std::move(series));
  }
  report::ChartSeries layers{.name = "whole layers", .points = {}, .dashed = true, .colour = -1};
  double most = 0;
  for (const auto& l : result.layers) {
    layers.points.emplace_back(mib_of(l.cache), l.tokens_per_s());
    most = std::max(most, mib_of(l.cache));
  }
  chart.series.push_back(std::move(layers));
  if (outcome.record.no_cache_ms > 0) {
    const double speed = per_second(outcome.record.no_cache_ms);
    chart.series.push_back(
        {.name = "no cache", .points = {{0, speed}, {most, speed}}, .colour = -1});
  }
  report::ChartSeries measured{.name = "measured", .points = {}, .only_points = true, .colour = -1};
  for (const auto& run : outcome.record.runs) {
    measured.points.emplace_back(mib_of(run.cache), per_second(run.ms_per_token));
  }
  if (outcome.chosen && outcome.chosen->cache > Bytes{}) {
    measured.points.emplace_back(mib_of(outcome.chosen->cache),
                                 per_second(outcome.chosen->measured_ms));
  }
  chart.series.push_back(std::move(measured));
  return report::line_chart_svg(chart);
}

std::string hit_chart(const TuneOutcome& outcome) {
  const sim::TuneResult& result = *outcome.result;
  report::LineChart chart{.title = "Hit rate over cache size",
                          .x_label = "cache, MiB",
                          .y_label = "hit rate, %",
                          .series = {}};
  report::ChartSeries replayed{.name = "replayed, share 0", .points = {}, .colour = 0};
  for (const auto& p : result.table) {
    if (p.share == 0.0) {
      replayed.points.emplace_back(mib_of(p.cache), 100 * p.hit_rate);
    }
  }
  chart.series.push_back(std::move(replayed));
  report::ChartSeries layers{.name = "whole layers", .points = {}, .dashed = true, .colour = -1};
  for (const auto& l : result.layers) layers.points.emplace_back(mib_of(l.cache), 100 * l.hit_rate);
  chart.series.push_back(std::move(layers));
  report::ChartSeries measured{.name = "measured", .points = {}, .only_points = true, .colour = -1};
  for (const auto& run : outcome.record.runs) {
    measured.points.emplace_back(mib_of(run.cache), 100 * run.hit_rate);
  }
  chart.series.push_back(std::move(measured));
  return report::line_chart_svg(chart);
}

constexpr std::string_view kStyle =
    ":root{color-scheme:light dark}\n"
    "body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;"
    "color:CanvasText;background:Canvas}\n"
    "h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}\n"
    "svg{width:100%;height:auto;max-width:56rem}\n"
    ".scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.87rem}\n"
    "th,td{padding:.2rem .6rem;text-align:right;border-bottom:1px solid color-mix(in srgb,"
    "currentColor 20%,transparent);white-space:nowrap}\n"
    "code{display:block;padding:.6rem "
    ".8rem;border-radius:.4rem;overflow-x:auto;white-space:pre-wrap;"
    "background:color-mix(in srgb,currentColor 9%,transparent)}\n"
    "p{margin:.3rem 0;overflow-wrap:anywhere}\n";

Json choice_json(const TuneChoice& c) {
  Json json = {{"cache_mib", c.cache.mib()},
               {"cpu_share", c.cache == Bytes{} ? Json(nullptr) : report::share_json(c.share)},
               {"measured_tokens_per_s", per_second(c.measured_ms)}};
  json["predicted_tokens_per_s"] =
      c.predicted_ms > 0 ? Json(per_second(c.predicted_ms)) : Json(nullptr);
  return json;
}

}  // namespace

std::string cache_mib_text(Bytes cache) { return fmt::format("{:.10g}", cache.mib()); }

std::string recommended_load_mode(const TuneOutcome& outcome) {
  if (outcome.without_device) return "mmap";
  return outcome.load_mode.empty() ? outcome.record.load_mode : outcome.load_mode;
}

int recommended_threads(const TuneOutcome& outcome) {
  return outcome.without_device ? outcome.cpu_alone->n_threads : outcome.record.n_threads;
}

std::string recommended_device(const TuneOutcome& outcome) {
  return outcome.without_device ? "none" : outcome.record.device;
}

std::string tune_command_line(const TuneOutcome& outcome) {
  const TuneRecord& r = outcome.record;
  const TuneChoice& c = *outcome.chosen;
  std::string line = r.command;
  if (r.all_fit && c.cache > Bytes{}) {
    line += " --moe-cache-mib auto";
  } else {
    line += " --moe-cache-mib " + cache_mib_text(c.cache);
    if (c.cache > Bytes{}) line += " --moe-cache-cpu-share " + report::share_text(c.share);
  }
  if (r.is_server) return line;
  return line + fmt::format(" --device {} -t {} --load-mode {}", recommended_device(outcome),
                            recommended_threads(outcome), recommended_load_mode(outcome));
}

std::string tune_text(const TuneOutcome& outcome) {
  std::string text;
  for (const Section& section : sections_of(outcome)) {
    text += (text.empty() ? "" : "\n") + section.title + "\n";
    if (!section.table.rows.empty()) text += section.table.text();
    for (const std::string& line : section.lines) text += "  " + line + "\n";
  }
  return text;
}

std::string tune_markdown(const TuneOutcome& outcome) {
  std::string text = "# hotset tune\n";
  for (const Section& section : sections_of(outcome)) {
    text += "\n## " + section.title + "\n\n";
    if (!section.table.rows.empty()) text += section.table.markdown() + "\n";
    for (const std::string& line : section.lines) text += "- " + line + "\n";
  }
  return text;
}

std::string tune_json(const TuneOutcome& outcome) {
  const TuneRecord& r = outcome.record;
  Json json = {{"model", r.model},
               {"device", r.device},
               {"machine", r.machine},
               {"n_threads", r.n_threads},
               {"load_mode", r.load_mode},
               {"tokens", r.tokens},
               {"all_fit", r.all_fit},
               {"expert_bytes", r.expert_bytes.count},
               {"most_cache_bytes", r.most_cache.count},
               {"no_cache_tokens_per_s", per_second(r.no_cache_ms)},
               {"rates",
                {{"link_gb_per_s", r.rates.link_gb_per_s},
                 {"cpu_gb_per_s", r.rates.cpu_gb_per_s},
                 {"device_gb_per_s", r.rates.device_gb_per_s}}}};
  json["thread_trials"] = Json::array();
  for (const ThreadTrial& trial : r.thread_trials) {
    json["thread_trials"].push_back(
        {{"n_threads", trial.n_threads}, {"tokens_per_s", per_second(trial.ms_per_token)}});
  }
  json["load_mode_trials"] = Json::array();
  for (const LoadModeTrial& trial : outcome.load_mode_trials) {
    json["load_mode_trials"].push_back(
        {{"load_mode", trial.mode}, {"tokens_per_s", per_second(trial.ms_per_token)}});
  }
  Json runs = Json::array();
  for (const sim::TuneRun& run : r.runs) {
    runs.push_back({{"cache_mib", run.cache.mib()},
                    {"cpu_share", report::share_json(run.share)},
                    {"tokens_per_s", per_second(run.ms_per_token)},
                    {"hit_rate", run.hit_rate},
                    {"up_gib_per_token", run.up_gib},
                    {"cpu_gib_per_token", run.cpu_gib}});
  }
  json["runs"] = std::move(runs);
  json["fit"] = nullptr;
  json["predicted"] = Json::array();
  json["whole_layers"] = Json::array();
  if (outcome.result && outcome.result->fit) {
    const sim::TimeModelFit& fit = *outcome.result->fit;
    json["fit"] = {{"base_ms", fit.model.base_ms},
                   {"up_ms_per_gib", fit.model.up_ms},
                   {"cpu_ms_per_gib", fit.model.cpu_ms},
                   {"split_ms", fit.model.split_ms},
                   {"overlap_ms_per_gib", fit.model.overlap_ms},
                   {"is_physical", fit.is_physical},
                   {"worst_error", fit.worst_error}};
    if (const auto& line = outcome.result->auto_line) {
      json["fit"]["auto_base_ms"] = line->base_ms;
      json["fit"]["auto_ms_per_gib"] = line->ms_per_gib;
    }
    for (const auto& p : outcome.result->table) {
      json["predicted"].push_back({{"cache_mib", p.cache.mib()},
                                   {"cpu_share", report::share_json(p.share)},
                                   {"tokens_per_s", p.tokens_per_s()},
                                   {"hit_rate", p.hit_rate},
                                   {"slots", p.slots}});
    }
    for (const auto& l : outcome.result->layers) {
      json["whole_layers"].push_back({{"cache_mib", l.cache.mib()},
                                      {"n_layers", l.n_layers},
                                      {"hit_rate", l.hit_rate},
                                      {"tokens_per_s", l.tokens_per_s()}});
    }
  }
  json["recommended_by_prediction"] =
      outcome.predicted ? choice_json(*outcome.predicted) : Json(nullptr);
  json["recommendation"] = outcome.chosen ? choice_json(*outcome.chosen) : Json(nullptr);
  json["command_line"] = outcome.chosen ? Json(tune_command_line(outcome)) : Json(nullptr);
  json["cpu_alone_tokens_per_s"] =
      outcome.cpu_alone ? Json(per_second(outcome.cpu_alone->ms_per_token)) : Json(nullptr);
  json["recommended_device"] = outcome.chosen ? Json(recommended_device(outcome)) : Json(nullptr);
  json["recommended_load_mode"] =
      outcome.chosen ? Json(recommended_load_mode(outcome)) : Json(nullptr);
  json["why"] = outcome.chosen ? outcome.why_chosen : outcome.why_not;
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string tune_html(const TuneOutcome& outcome) {
  const std::string title = "hotset tune: " + outcome.record.model;
  std::string text = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
      "<title>{0}</title>\n<style>\n{1}</style></head><body>\n<h1>{0}</h1>\n",
      report::escaped_html(title), kStyle);
  const auto add_section = [&](const Section& section, bool has_command) {
    text += "<h2>" + report::escaped_html(section.title) + "</h2>\n";
    if (!section.table.rows.empty()) text += html_table(section.table);
    for (size_t i = 0; i < section.lines.size(); ++i) {
      const char* tag = has_command && i == 0 ? "code" : "p";
      text += fmt::format("<{0}>{1}</{0}>\n", tag, report::escaped_html(section.lines[i]));
    }
  };
  std::vector<Section> sections = sections_of(outcome);
  // What a reader wants first.
  add_section(sections.back(), outcome.chosen.has_value());
  sections.pop_back();
  if (outcome.result && !outcome.result->table.empty()) {
    text += "<h2>Curves</h2>\n" + speed_chart(outcome) + hit_chart(outcome);
  }
  for (const Section& section : sections) add_section(section, false);
  return text + "</body></html>\n";
}

}  // namespace hotset::measure
