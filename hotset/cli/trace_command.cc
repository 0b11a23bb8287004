#include "hotset/cli/trace_command.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <utility>

#include "hotset/base/interrupt.h"
#include "hotset/base/printable.h"
#include "hotset/trace/reader.h"
#include "hotset/trace/shape.h"
#include "hotset/trace/writer.h"

namespace hotset::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<const char*, 4> kTokenClasses = {"1", "2-8", "9-32", "more"};
// Lookups between two looks at Ctrl-C.
constexpr int64_t kLookupsPerCheck = 1024;

std::unexpected<Error> interrupted_error() {
  return make_error(ErrorCode::kCancelled, "interrupted");
}

struct MeasuredTrace {
  trace::TraceHeader header;
  uint64_t n_bytes = 0;
  trace::TraceShape shape;
};

Result<MeasuredTrace> measure(const std::string& path) {
  HOTSET_TRY(trace::TraceReader reader, trace::TraceReader::open(path));
  trace::TraceShapeBuilder builder(reader.header());
  for (int64_t n = 0;; ++n) {
    if (n % kLookupsPerCheck == 0 && InterruptScope::interrupted()) return interrupted_error();
    HOTSET_TRY(const trace::TraceLookup* lookup, reader.next());
    if (lookup == nullptr) break;
    builder.add(*lookup);
  }
  return MeasuredTrace{reader.header(), reader.offset_bytes(), builder.shape()};
}

double percent(double part) { return 100 * part; }

double percent_of(int64_t part, int64_t whole) {
  return whole > 0 ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 0;
}

std::string plural(int64_t n, std::string_view word) {
  return fmt::format("{} {}{}", n, word, n == 1 ? "" : "s");
}

std::string group_text(const trace::TraceGroup& group, const trace::GroupShape& shape,
                       size_t index) {
  const int64_t n_experts = group.total_experts();
  std::string text =
      fmt::format("  group {}: device {}, {} of {} experts, {} each, {} together\n", index,
                  group.device, plural(std::ssize(group.layers), "layer"), group.n_expert,
                  to_string(group.expert_bytes()), to_string(group.group_host_bytes));
  text += fmt::format("    {} uses, {} of them reuses ({:.1f}%)\n", shape.n_uses, shape.n_reuses,
                      percent_of(shape.n_reuses, shape.n_uses));
  if (shape.n_reuses == 0) return text;
  text += "    reuse distance, other experts used in between (% of the group's experts):\n     ";
  for (size_t p = 0; p < trace::kReusePercentiles.size(); ++p) {
    text += fmt::format(" p{} {} ({:.1f}%)", trace::kReusePercentiles[p], shape.reuse_distance[p],
                        percent_of(shape.reuse_distance[p], n_experts));
  }
  return text + "\n";
}

std::string layers_text(const std::vector<trace::LayerShape>& layers) {
  std::string text =
      "  layer  lookups   tokens  experts used  repeated %  top tenth %  effective experts\n";
  for (const trace::LayerShape& layer : layers) {
    const trace::RoutingSpread& spread = layer.spread;
    text += fmt::format(
        "  {:>5} {:>8} {:>8} {:>13} {:>11.1f} {:>12.1f} {:>18.1f}\n", layer.layer, spread.n_lookups,
        spread.n_tokens, fmt::format("{} of {}", spread.n_experts_used, spread.n_experts),
        percent(spread.repeated_share), percent(spread.top_tenth_share), spread.effective_experts);
  }
  return text;
}

// Lowest, middle and highest of a number of the layers.
template <typename Get>
std::string range_text(const std::vector<trace::LayerShape>& layers, const Get& get) {
  std::vector<double> values;
  for (const trace::LayerShape& layer : layers) {
    if (layer.spread.n_lookups > 0) values.push_back(get(layer.spread));
  }
  if (values.empty()) return "none";
  std::ranges::sort(values);
  return fmt::format("{:.1f} / {:.1f} / {:.1f}", values.front(), values[values.size() / 2],
                     values.back());
}

std::string info_text(const std::string& path, const MeasuredTrace& trace, bool with_layers) {
  const trace::TraceShape& shape = trace.shape;
  const trace::RoutingSpread& total = shape.total;
  std::string text = fmt::format(
      "{}: {}\n  {} of {} with experts, {} per token; {} of experts\n", printable(path),
      to_string(Bytes{static_cast<int64_t>(trace.n_bytes)}), std::ssize(shape.layers),
      plural(trace.header.n_layer, "layer"), plural(trace.header.experts_per_token, "expert"),
      to_string(trace.header.host_bytes()));
  text += fmt::format("  {}, {}, {}; tokens per lookup:", plural(total.n_lookups, "lookup"),
                      plural(total.n_tokens, "token"), plural(total.n_ids, "id"));
  for (size_t c = 0; c < kTokenClasses.size(); ++c) {
    if (shape.lookups_by_tokens[c] == 0) continue;
    text += fmt::format(" {}: {:.1f}%", kTokenClasses[c],
                        percent_of(shape.lookups_by_tokens[c], total.n_lookups));
  }
  text += fmt::format("; most {}\n", shape.max_lookup_tokens);
  text += fmt::format(
      "  {} of {} experts used; {:.1f}% of a token's experts were those of the token before\n",
      total.n_experts_used, total.n_experts, percent(total.repeated_share));
  text += fmt::format(
      "  by layer (lowest / middle / highest): the busiest tenth takes {} % of the selections; "
      "effective experts {}\n",
      range_text(shape.layers, [](const auto& s) { return percent(s.top_tenth_share); }),
      range_text(shape.layers, [](const auto& s) { return s.effective_experts; }));
  for (size_t g = 0; g < shape.groups.size(); ++g) {
    text += group_text(trace.header.groups[g], shape.groups[g], g);
  }
  if (with_layers) text += layers_text(shape.layers);
  return text;
}

Json spread_json(const trace::RoutingSpread& spread) {
  return {{"lookups", spread.n_lookups},
          {"tokens", spread.n_tokens},
          {"ids", spread.n_ids},
          {"experts", spread.n_experts},
          {"experts_used", spread.n_experts_used},
          {"repeated_share", spread.repeated_share},
          {"top_tenth_share", spread.top_tenth_share},
          {"effective_experts", spread.effective_experts}};
}

Json info_json(const std::string& path, const MeasuredTrace& trace) {
  Json object = {{"trace", path},
                 {"bytes", trace.n_bytes},
                 {"n_layer", trace.header.n_layer},
                 {"experts_per_token", trace.header.experts_per_token},
                 {"host_bytes", trace.header.host_bytes().count},
                 {"total", spread_json(trace.shape.total)},
                 {"max_lookup_tokens", trace.shape.max_lookup_tokens}};
  for (size_t c = 0; c < kTokenClasses.size(); ++c) {
    object["lookups_by_tokens"][kTokenClasses[c]] = trace.shape.lookups_by_tokens[c];
  }
  object["groups"] = Json::array();
  for (size_t g = 0; g < trace.shape.groups.size(); ++g) {
    const trace::TraceGroup& group = trace.header.groups[g];
    const trace::GroupShape& shape = trace.shape.groups[g];
    Json entry = {{"device", group.device},
                  {"n_expert", group.n_expert},
                  {"layers", group.layers},
                  {"expert_bytes", group.expert_bytes().count},
                  {"host_bytes", group.group_host_bytes.count},
                  {"uses", shape.n_uses},
                  {"reuses", shape.n_reuses}};
    for (size_t p = 0; p < trace::kReusePercentiles.size(); ++p) {
      entry["reuse_distance"][fmt::format("p{}", trace::kReusePercentiles[p])] =
          shape.reuse_distance[p];
    }
    object["groups"].push_back(std::move(entry));
  }
  object["layers"] = Json::array();
  for (const trace::LayerShape& layer : trace.shape.layers) {
    Json entry = spread_json(layer.spread);
    entry["layer"] = layer.layer;
    object["layers"].push_back(std::move(entry));
  }
  return object;
}

std::string written_text(const std::string& path, const trace::EditCounts& counts) {
  return fmt::format("wrote {}: {}, {}\n", printable(path), plural(counts.n_lookups, "lookup"),
                     plural(counts.n_ids, "id"));
}

// The number that all of `text` is.
bool parse_number(std::string_view text, int32_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

Result<std::vector<int32_t>> parse_layers(std::string_view list) {
  std::set<int32_t> layers;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string_view part = list.substr(begin, end - begin);
    const size_t dash = part.find('-');
    int32_t first = 0;
    int32_t last = 0;
    const bool is_range = dash != std::string_view::npos;
    if (!parse_number(part.substr(0, dash), first) ||
        (is_range && !parse_number(part.substr(dash + 1), last)) || first < 0 ||
        (is_range && last < first) ||
        std::max(first, last) >= static_cast<int32_t>(trace::kMaxTraceLayers)) {
      return make_error(ErrorCode::kInvalidArgument,
                        "--layers: found \"{}\", expected numbers and ranges like 0-3,7", part);
    }
    for (int32_t layer = first; layer <= (is_range ? last : first); ++layer) layers.insert(layer);
    begin = end + 1;
  }
  return std::vector<int32_t>(layers.begin(), layers.end());
}

Result<std::string> trace_info(const TraceInfoOptions& options) {
  const InterruptScope interrupt;
  std::string text;
  Json array = Json::array();
  for (const std::string& path : options.traces) {
    HOTSET_TRY(const MeasuredTrace trace, measure(path));
    if (options.json) {
      array.push_back(info_json(path, trace));
    } else {
      text += info_text(path, trace, options.layers);
    }
  }
  if (!options.json) return text;
  return array.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<std::string> trace_cut(const TraceCutOptions& options) {
  const InterruptScope interrupt;
  trace::CutOptions cut = options.cut;
  cut.cancelled = &InterruptScope::flag();
  if (!options.layers.empty()) {
    HOTSET_TRY(cut.layers, parse_layers(options.layers));
  }
  HOTSET_TRY(const trace::EditCounts counts, trace::cut_trace(options.in, options.out, cut));
  return written_text(options.out, counts);
}

Result<std::string> trace_merge(const TraceMergeOptions& options) {
  const InterruptScope interrupt;
  trace::MergeOptions merge{.interleave_steps = options.interleave_steps,
                            .cancelled = &InterruptScope::flag()};
  if (options.mode == "interleave") {
    merge.mode = trace::MergeMode::kInterleave;
  } else if (options.mode == "batch") {
    merge.mode = trace::MergeMode::kBatch;
  } else if (options.mode != "concatenate") {
    return make_error(ErrorCode::kInvalidArgument,
                      "--mode: found \"{}\", expected concatenate, interleave or batch",
                      options.mode);
  }
  HOTSET_TRY(const trace::EditCounts counts, trace::merge_traces(options.in, options.out, merge));
  return written_text(options.out, counts);
}

Result<std::string> trace_synth(const TraceSynthOptions& options) {
  const InterruptScope interrupt;
  trace::SynthOptions synth = options.synth;
  synth.tensor_expert_bytes.clear();
  for (const int64_t n_bytes : options.expert_bytes) synth.tensor_expert_bytes.push_back({n_bytes});
  HOTSET_TRY(const trace::TraceHeader header, trace::synth_header(synth));
  HOTSET_TRY(trace::TraceWriter writer, trace::TraceWriter::open(options.out, header));
  trace::EditCounts counts;
  HOTSET_RETURN_IF_ERROR(trace::synthesize(synth, [&](const trace::TraceLookup& lookup) -> Status {
    if (InterruptScope::interrupted()) return interrupted_error();
    ++counts.n_lookups;
    counts.n_ids += std::ssize(lookup.ids);
    return writer.append(lookup);
  }));
  HOTSET_RETURN_IF_ERROR(writer.close());
  return fmt::format("{}seed {}\n", written_text(options.out, counts), synth.seed);
}

}  // namespace hotset::cli
