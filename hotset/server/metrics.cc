#include "hotset/server/metrics.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "hotset/base/printable.h"
#include "hotset/server/generation.h"

namespace hotset::server {
namespace {

class Text {
 public:
  void metric(std::string_view name, std::string_view type, std::string_view help) {
    name_ = name;
    text_ += fmt::format("# HELP hotset_{} {}\n# TYPE hotset_{} {}\n", name, help, name, type);
  }
  void value(double value, std::string_view labels = {}) {
    text_ += labels.empty() ? fmt::format("hotset_{} {}\n", name_, value)
                            : fmt::format("hotset_{}{{{}}} {}\n", name_, labels, value);
  }
  void counter(std::string_view name, std::string_view help, double v) {
    metric(name, "counter", help);
    value(v);
  }
  void gauge(std::string_view name, std::string_view help, double v) {
    metric(name, "gauge", help);
    value(v);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string name_;
  std::string text_;
};

double real(uint64_t n) { return static_cast<double>(n); }

// A label's value, as the text format wants it.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : printable(text)) {
    if (c == '\\' || c == '"') result += '\\';
    result += c;
  }
  return result;
}

void add_scheduler(const SchedulerStatus& s, Text& text) {
  text.counter("requests_total", "Requests to generate that were accepted.", real(s.n_requests));
  text.counter("requests_refused_total", "Requests that found the queue full.", real(s.n_refused));
  text.metric("choices_total", "counter", "Choices that have ended, by reason.");
  for (size_t i = 0; i < s.n_ended.size(); ++i) {
    text.value(real(s.n_ended[i]),
               fmt::format("reason=\"{}\"", stop_reason_name(static_cast<StopReason>(i))));
  }
  text.metric("prompt_tokens_total", "counter", "Tokens of prompts, computed or reused.");
  text.value(real(s.n_prompt_computed), "source=\"computed\"");
  text.value(real(s.n_prompt_reused), "source=\"reused\"");
  text.counter("generated_tokens_total", "Tokens that were generated.", real(s.n_generated));
  text.metric("steps_total", "counter", "Batches that were computed.");
  text.value(real(s.n_decode_steps), "phase=\"decode\"");
  text.value(real(s.n_prefill_steps), "phase=\"prefill\"");
  text.metric("step_seconds_total", "counter", "Time that batches took.");
  text.value(s.decode_us / 1e6, "phase=\"decode\"");
  text.value(s.prefill_us / 1e6, "phase=\"prefill\"");
  text.counter("preemptions_total", "Running choices that had to wait again for positions.",
               real(s.n_preempted));
  text.counter("not_finite_total",
               "Choices that failed because their numbers were NaN or infinite.",
               real(s.n_not_finite));
  text.counter("prompts_restored_total", "Prompts whose beginning came from host memory.",
               real(s.n_restored));
  text.gauge("saved_prompts", "Prompts in host memory.", real(s.n_saved));
  text.gauge("saved_prompts_bytes", "Host memory that they take.",
             static_cast<double>(s.saved_bytes.count));
  text.gauge("slots", "Sequences that are decoded together at most.", real(s.slots.size()));
  const auto n_busy = std::ranges::count_if(s.slots, [](const SlotStatus& b) { return b.is_busy; });
  text.gauge("slots_busy", "Sequences that are being served.", static_cast<double>(n_busy));
  text.gauge("requests_queued", "Requests that wait for a slot.", s.n_queued);
  text.gauge("kv_positions", "Positions of the KV memory.", s.n_ctx);
  text.gauge("kv_positions_used", "Positions of the KV memory that hold a token.", s.n_used);
}

// What the account's metrics mean.
struct CacheMetric {
  std::string_view name;
  std::string_view help;
};
constexpr std::array kCacheMetrics = {
    CacheMetric{"moe_cache_lookups_total", "Lookups of the expert cache."},
    CacheMetric{"moe_cache_experts_total",
                "Distinct experts of lookups, by where they were computed."},
    CacheMetric{"moe_cache_fills_total", "Experts that were copied in the background."},
    CacheMetric{"moe_cache_evictions_total", "Experts that lost their slot."},
    CacheMetric{"moe_cache_bytes_total", "Bytes of experts that were copied or read."},
    CacheMetric{"moe_cache_lane_seconds_total", "Time of lanes, where it is known."},
};

void add_cache(const cache::CacheCounts& counts, Text& text) {
  for (const CacheMetric& metric : kCacheMetrics) {
    text.metric(metric.name, "counter", metric.help);
    for (const cache::CountField& field : cache::count_fields()) {
      if (field.metric != metric.name) continue;
      const double value = number(counts, field);
      text.value(field.unit == "us" ? value / 1e6 : value,
                 field.label.empty() ? "" : fmt::format("lane=\"{}\"", field.label));
    }
    if (metric.name == "moe_cache_lane_seconds_total") {
      text.value(counts.upload_us() / 1e6, "lane=\"upload\"");
    }
  }
}

}  // namespace

std::string metrics_text(const MetricsInput& input) {
  Text text;
  text.metric("build_info", "gauge", "1, with what is running.");
  text.value(
      1, fmt::format("version=\"{}\",model=\"{}\"", escaped(input.version), escaped(input.model)));
  text.gauge("start_time_seconds", "When the server began, Unix time.", input.start_time_s);
  text.gauge("connections", "Open connections.", input.n_connections);
  text.metric("http_responses_total", "counter", "Answers, by status.");
  for (const auto& [status, n] : input.responses) {
    text.value(real(n), fmt::format("code=\"{}\"", status));
  }
  add_scheduler(input.scheduler, text);
  add_cache(input.cache, text);
  return text.take();
}

}  // namespace hotset::server
