#include "hotset/measure/bench_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "hotset/base/json.h"
#include "hotset/base/printable.h"
#include "hotset/measure/bench_run.h"
#include "hotset/report/text_table.h"

namespace hotset::measure {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kUnknown = "-";

// A speed with as many digits as say something.
std::string speed_text(double x) {
  return x >= 1000  ? fmt::format("{:.0f}", x)
         : x >= 100 ? fmt::format("{:.1f}", x)
                    : fmt::format("{:.2f}", x);
}

std::string rate_text(double gb_per_s) {
  return gb_per_s > 0 ? fmt::format("{:.2f}", gb_per_s) : std::string(kUnknown);
}

double percent_of_bound(const BenchRow& row) {
  return row.bound_tokens_per_s > 0 ? 100 * row.mean() / row.bound_tokens_per_s : 0;
}

std::string device_text(const BenchRow& row) {
  return row.virtual_clock ? row.device_name + " (virtual)" : row.device_name;
}

report::TextTable table_of(const BenchResult& result) {
  report::TextTable table{
      .heads = {"test", "device", "threads", "ubatch", "cache MiB", "share", "tokens/s", "+-",
                "hit %", "device GB/s", "link GB/s", "CPU GB/s", "bound", "% of it"},
      .is_word = std::vector<bool>(14, false),
      .rows = {}};
  table.is_word[0] = table.is_word[1] = true;
  for (const BenchRow& row : result.rows) {
    const bool has_cache = row.n_slots > 0;
    table.rows.push_back(
        {test_name(row.what), device_text(row), fmt::format("{}", row.n_threads),
         fmt::format("{}", row.what.n_ubatch),
         row.device_name == "none" ? std::string(kUnknown) : row.what.cache_mib,
         has_cache ? row.what.cpu_share : std::string(kUnknown), speed_text(row.mean()),
         speed_text(row.deviation()),
         row.hit_rate ? fmt::format("{:.1f}", 100 * *row.hit_rate) : std::string(kUnknown),
         rate_text(row.gb_per_s(row.bytes.reads.hits + row.bytes.reads.dense)),
         rate_text(row.gb_per_s(row.bytes.linked)),
         rate_text(row.bytes.cpu_known ? row.gb_per_s(row.bytes.cpu) : 0),
         row.bound_tokens_per_s > 0 ? speed_text(row.bound_tokens_per_s) : std::string(kUnknown),
         row.bound_tokens_per_s > 0 ? fmt::format("{:.1f}", percent_of_bound(row))
                                    : std::string(kUnknown)});
  }
  return table;
}

// Distinct rates, a line each.
std::vector<std::string> rate_lines(const BenchResult& result) {
  std::vector<std::string> lines;
  for (const BenchRow& row : result.rows) {
    const measure::MachineRates& r = row.rates;
    std::string text = fmt::format("{}, {} threads:", row.device_name, row.n_threads);
    const auto add = [&](std::string_view what, double rate) {
      if (rate > 0) text += fmt::format(" {} {:.1f} GB/s,", what, rate);
    };
    if (row.device_name != "none") {
      add("link", r.link);
      add("CPU", r.cpu);
      add("device", r.device);
    }
    add("memory", r.memory);
    if (!text.ends_with(',')) continue;
    text.pop_back();
    if (std::ranges::find(lines, text) == lines.end()) lines.push_back(std::move(text));
  }
  return lines;
}

std::vector<std::string> head_lines(const BenchResult& result) {
  const BenchContext& c = result.context;
  std::vector<std::string> lines;
  lines.push_back(fmt::format("build: hotset {} ({}), {}, {} {}; ggml {}", c.build.version,
                              c.build.commit, c.build.compiler, c.build.build_type, c.build.flags,
                              c.ggml));
  lines.push_back(fmt::format("machine: {}, {} cores, {}", c.machine.cpu, c.machine.n_cores,
                              to_string(c.machine.ram)));
  lines.push_back(
      fmt::format("model: {}, {}, {}, of which experts {}; {} layers, {} of {} experts "
                  "per token",
                  c.model, c.architecture, to_string(c.model_bytes), to_string(c.expert_bytes),
                  c.n_layer, c.n_expert_used, c.n_expert));
  lines.push_back("flags: " + c.flags);
  lines.push_back(fmt::format("tokens: {}{}; {} repetitions", c.tokens,
                              c.tokens == "random"
                                  ? ", which route unlike text: hit rates are not those of use"
                              : c.text_repeats ? ", which begins again where it ends"
                                               : "",
                              c.n_repetitions));
  for (const std::string& rates : rate_lines(result)) lines.push_back("rates: " + rates);
  return lines;
}

constexpr std::string_view kLegend =
    "test: pp: tokens of a prompt, tg: generated ones (those of the text, one by one), @ d: behind "
    "so many others, x: sequences at once.\n"
    "GB/s: bytes that a lane read or moved, over all the time. bound: tokens/s if every lane were "
    "busy at its rate all the time,\n"
    "at the measured hit rate: docs/benchmarking.md. A virtual clock's times are computed.\n";

struct Field {
  std::string name;
  Json value;
};

// Everything there is about a row: what JSON and CSV print.
std::vector<Field> fields_of(const BenchContext& c, const BenchRow& row) {
  const auto known = [](double x) { return x > 0 ? Json(x) : Json(nullptr); };
  constexpr double kGib = 1 << 30;
  return {{"test", test_name(row.what)},
          {"n_prompt", row.what.n_prompt},
          {"n_gen", row.what.n_gen},
          {"depth", row.what.depth},
          {"n_parallel", row.what.n_parallel},
          {"device", row.device_name},
          {"clock", row.virtual_clock ? "virtual" : "steady"},
          {"n_threads", row.n_threads},
          {"n_ubatch", row.what.n_ubatch},
          {"moe_cache_mib", row.what.cache_mib},
          {"moe_cache_cpu_share", row.what.cpu_share},
          {"n_slots", row.n_slots},
          {"n_experts", row.n_experts},
          {"flash_attention", row.flash_attention},
          {"tokens_per_s", row.mean()},
          {"tokens_per_s_sd", row.deviation()},
          {"samples_tokens_per_s", row.tokens_per_s},
          {"hit_rate", row.hit_rate ? Json(*row.hit_rate) : Json(nullptr)},
          {"device_gb_per_s", row.gb_per_s(row.bytes.reads.hits + row.bytes.reads.dense)},
          {"link_gb_per_s", row.gb_per_s(row.bytes.linked)},
          {"cpu_gb_per_s", row.bytes.cpu_known ? Json(row.gb_per_s(row.bytes.cpu)) : Json(nullptr)},
          {"link_gib_per_token", row.bytes.linked / kGib},
          {"cpu_gib_per_token", row.bytes.cpu_known ? Json(row.bytes.cpu / kGib) : Json(nullptr)},
          {"bound_tokens_per_s", known(row.bound_tokens_per_s)},
          {"percent_of_bound", known(percent_of_bound(row))},
          {"rate_link_gb_per_s", known(row.rates.link)},
          {"rate_cpu_gb_per_s", known(row.rates.cpu)},
          {"rate_device_gb_per_s", known(row.rates.device)},
          {"rate_memory_gb_per_s", known(row.rates.memory)},
          {"verdict", row.verdict},
          {"model", c.model},
          {"architecture", c.architecture},
          {"model_bytes", c.model_bytes.count},
          {"expert_bytes", c.expert_bytes.count},
          {"tokens", c.tokens},
          {"text_repeats", c.text_repeats},
          {"n_repetitions", row.tokens_per_s.size()},
          {"flags", c.flags},
          {"version", std::string(c.build.version)},
          {"commit", std::string(c.build.commit)},
          {"compiler", std::string(c.build.compiler)},
          {"compiler_flags", std::string(c.build.flags)},
          {"ggml", c.ggml},
          {"cpu", c.machine.cpu},
          {"n_cores", c.machine.n_cores},
          {"ram_bytes", c.machine.ram.count}};
}

// --- Two files

struct ComparedRow {
  std::string key;  // what was measured
  std::string test;
  std::string device;
  std::string cache;
  double mean = 0;
  double deviation = 0;
};

std::string text_of(const Json& value) {
  return printable(value.is_string() ? value.get<std::string>() : value.dump());
}

Result<std::vector<ComparedRow>> read_rows(const std::string& name, const std::string& text) {
  const auto parsed = parse_json(text);
  if (!parsed || !parsed->is_array()) {
    return make_error(ErrorCode::kCorrupt,
                      "{}: found no JSON array, expected the output of `hotset bench --json`{}",
                      name, parsed ? "" : ": it is " + parsed.error().message);
  }
  const Json& json = *parsed;
  std::vector<ComparedRow> rows;
  for (size_t i = 0; i < json.size(); ++i) {
    const Json& object = json[i];
    const auto has = [&](const char* field, bool number) {
      return object.is_object() && object.contains(field) && (!number || object[field].is_number());
    };
    ComparedRow row;
    for (const char* field : {"n_prompt", "n_gen", "tokens_per_s", "tokens_per_s_sd"}) {
      if (has(field, true)) continue;
      return make_error(ErrorCode::kCorrupt, "{}: row {}: {}: found {}, expected a number", name, i,
                        field, has(field, false) ? printable(object[field].dump()) : "nothing");
    }
    for (const char* field :
         {"model", "tokens", "n_prompt", "n_gen", "depth", "n_parallel", "device", "clock",
          "n_threads", "n_ubatch", "moe_cache_mib", "moe_cache_cpu_share"}) {
      row.key += (has(field, false) ? object[field].dump() : "") + "|";
    }
    const auto word = [&](const char* field) {
      return has(field, false) ? text_of(object[field]) : std::string(kUnknown);
    };
    row.test = word("test");
    row.device = word("device");
    row.cache = fmt::format("{} MiB, share {}, {} threads", word("moe_cache_mib"),
                            word("moe_cache_cpu_share"), word("n_threads"));
    row.mean = object["tokens_per_s"].get<double>();
    row.deviation = object["tokens_per_s_sd"].get<double>();
    rows.push_back(std::move(row));
  }
  return rows;
}

// Twice the deviation of the difference.
std::string judge(const ComparedRow& a, const ComparedRow& b) {
  const double noise = 2 * std::sqrt(a.deviation * a.deviation + b.deviation * b.deviation);
  if (std::abs(b.mean - a.mean) <= noise) return "within the noise";
  return b.mean > a.mean ? "faster" : "slower";
}

}  // namespace

std::string bench_table(const BenchResult& result) {
  std::string text;
  for (const std::string& line : head_lines(result)) text += line + "\n";
  return text + "\n" + table_of(result).text() + "\n" + std::string(kLegend);
}

std::string bench_markdown(const BenchResult& result) {
  std::string text;
  for (const std::string& line : head_lines(result)) text += "- " + line + "\n";
  return text + "\n" + table_of(result).markdown();
}

std::string bench_csv(const BenchResult& result) {
  std::string text;
  for (const BenchRow& row : result.rows) {
    const std::vector<Field> fields = fields_of(result.context, row);
    const auto line = [&](auto cell) {
      std::string cells;
      for (const Field& field : fields) cells += (cells.empty() ? "" : ",") + cell(field);
      text += cells + "\n";
    };
    if (text.empty()) line([](const Field& field) { return field.name; });
    line([](const Field& field) {
      if (!field.value.is_array())
        return field.value.is_null() ? "" : report::csv_field(text_of(field.value));
      std::string list;
      for (const Json& x : field.value) list += (list.empty() ? "" : " ") + x.dump();
      return list;
    });
  }
  return text;
}

std::string bench_json(const BenchResult& result) {
  Json array = Json::array();
  for (const BenchRow& row : result.rows) {
    Json object;
    for (Field& field : fields_of(result.context, row)) object[field.name] = std::move(field.value);
    array.push_back(std::move(object));
  }
  return array.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<std::string> compare_bench(const std::string& name_a, const std::string& json_a,
                                  const std::string& name_b, const std::string& json_b,
                                  BenchFormat format) {
  HOTSET_TRY(const std::vector<ComparedRow> a, read_rows(name_a, json_a));
  HOTSET_TRY(const std::vector<ComparedRow> b, read_rows(name_b, json_b));
  report::TextTable table{
      .heads = {"test", "device", "cache", "A tokens/s", "B tokens/s", "B / A", "B is"},
      .is_word = {true, true, true, false, false, false, true},
      .rows = {}};
  Json array = Json::array();
  std::set<const ComparedRow*> matched;
  for (const ComparedRow& row : a) {
    const auto other = std::ranges::find_if(
        b, [&](const ComparedRow& r) { return r.key == row.key && !matched.contains(&r); });
    if (other == b.end()) continue;
    matched.insert(&*other);
    matched.insert(&row);
    const double ratio = row.mean > 0 ? other->mean / row.mean : 0;
    const auto speed = [](const ComparedRow& r) {
      return fmt::format("{} +- {}", speed_text(r.mean), speed_text(r.deviation));
    };
    table.rows.push_back({row.test, row.device, row.cache, speed(row), speed(*other),
                          fmt::format("{:.3f}", ratio), judge(row, *other)});
    array.push_back({{"test", row.test},
                     {"device", row.device},
                     {"cache", row.cache},
                     {"a_tokens_per_s", row.mean},
                     {"b_tokens_per_s", other->mean},
                     {"ratio", ratio},
                     {"b_is", judge(row, *other)}});
  }
  if (table.rows.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} and {}: found no test that both measured (same model, tokens, device, "
                      "threads, cache and lengths)",
                      name_a, name_b);
  }
  if (format == BenchFormat::kJson)
    return array.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  if (format == BenchFormat::kCsv) {
    std::string text;
    const auto line = [&](const std::vector<std::string>& cells) {
      for (size_t i = 0; i < cells.size(); ++i)
        text += (i > 0 ? "," : "") + report::csv_field(cells[i]);
      text += "\n";
    };
    line(table.heads);
    for (const auto& row : table.rows) line(row);
    return text;
  }
  std::string text = fmt::format("A: {}\nB: {}\n\n", printable(name_a), printable(name_b));
  text += format == BenchFormat::kMarkdown ? table.markdown() : table.text();
  const auto n_alone = [&](const std::vector<ComparedRow>& rows) {
    return std::ranges::count_if(rows, [&](const auto& r) { return !matched.contains(&r); });
  };
  if (n_alone(a) + n_alone(b) > 0) {
    text += fmt::format("\nNot compared: {} rows of A and {} of B, which the other has not.\n",
                        n_alone(a), n_alone(b));
  }
  return text;
}

}  // namespace hotset::measure
