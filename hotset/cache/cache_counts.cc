#include "hotset/cache/cache_counts.h"

namespace hotset::cache {

BatchClass batch_class(int32_t n_tokens) {
  if (n_tokens <= 1) return BatchClass::kOne;
  if (n_tokens <= 8) return BatchClass::k2To8;
  if (n_tokens <= 32) return BatchClass::k9To32;
  return BatchClass::kMore;
}

std::string_view batch_class_name(BatchClass batch) {
  switch (batch) {
    case BatchClass::kOne:
      return "1";
    case BatchClass::k2To8:
      return "2-8";
    case BatchClass::k9To32:
      return "9-32";
    case BatchClass::kMore:
      return "more";
  }
  return "?";
}

std::span<const CountField> count_fields() {
  using C = CacheCounts;
  static constexpr std::string_view kExperts = "moe_cache_experts_total";
  static constexpr std::string_view kBytes = "moe_cache_bytes_total";
  static constexpr std::string_view kSeconds = "moe_cache_lane_seconds_total";
  static const std::array<CountField, 36> kFields = {{
      {"lookups", "lookups", &C::lookups, "moe_cache_lookups_total"},
      {"tokens", "tokens", &C::tokens},
      {"pairs", "pairs", &C::pairs},
      {"hit_pairs", "pairs", &C::hit_pairs},
      {"selected", "experts", &C::selected},
      {"hits", "experts", &C::hits, kExperts, "hit"},
      {"uploads", "experts", &C::uploads, kExperts, "upload"},
      {"cpu", "experts", &C::cpu, kExperts, "cpu"},
      {"streamed", "experts", &C::streamed, kExperts, "streamed"},
      {"fills", "experts", &C::fills, "moe_cache_fills_total"},
      {"fills_entered", "experts", &C::fills_entered},
      {"fills_dropped", "experts", &C::fills_dropped},
      {"evictions", "experts", &C::evictions, "moe_cache_evictions_total"},
      {"hit_bytes", "bytes", &C::hit_bytes, kBytes, "hit"},
      {"uploaded_bytes", "bytes", &C::uploaded_bytes, kBytes, "upload"},
      {"filled_bytes", "bytes", &C::filled_bytes, kBytes, "fill"},
      {"cpu_bytes", "bytes", &C::cpu_bytes, kBytes, "cpu"},
      {"streamed_bytes", "bytes", &C::streamed_bytes, kBytes, "streamed"},
      {"unused_bytes", "bytes", &C::unused_bytes},
      {"timed_upload_bytes", "bytes", &C::timed_upload_bytes},
      {"timed_upload_us", "us", &C::timed_upload_us},
      {"cpu_us", "us", &C::cpu_us, kSeconds, "cpu"},
      {"wait_us", "us", &C::wait_us, kSeconds, "wait"},
      {"splits/hits", "lookups", &C::split_hits},
      {"splits/uploads", "lookups", &C::split_uploads},
      {"splits/both", "lookups", &C::split_both},
      {"splits/cpu", "lookups", &C::split_cpu},
      {"splits/all on cpu", "lookups", &C::split_all_on_cpu},
      {"splits/streamed", "lookups", &C::split_streamed},
      {"reasons/nothing missing", "lookups", &C::why_nothing_missing},
      {"reasons/share", "lookups", &C::why_share},
      {"reasons/costs", "lookups", &C::why_costs},
      {"reasons/many tokens", "lookups", &C::why_many_tokens},
      {"reasons/most experts", "lookups", &C::why_most_experts},
      {"reasons/uploads stopped", "lookups", &C::why_uploads_stopped},
      {"reasons/no slots", "lookups", &C::why_no_slots},
  }};
  static_assert(sizeof(CacheCounts) == kFields.size() * sizeof(uint64_t), "a field is missing");
  return kFields;
}

double number(const CacheCounts& counts, const CountField& field) {
  return std::visit(
      [&](auto member) {
        if constexpr (requires { (counts.*member).count; }) {
          return static_cast<double>((counts.*member).count);
        } else {
          return static_cast<double>(counts.*member);
        }
      },
      field.member);
}

CacheCounts& CacheCounts::operator+=(const CacheCounts& other) {
  for (const CountField& field : count_fields()) {
    std::visit([&](auto member) { this->*member += other.*member; }, field.member);
  }
  return *this;
}

CacheCounts& CacheCounts::operator-=(const CacheCounts& other) {
  for (const CountField& field : count_fields()) {
    std::visit([&](auto member) { this->*member = this->*member - other.*member; }, field.member);
  }
  return *this;
}

double CacheCounts::hit_rate() const {
  return selected == 0 ? 0.0 : static_cast<double>(hits) / static_cast<double>(selected);
}

double CacheCounts::upload_us() const {
  if (timed_upload_bytes.count == 0) return 0;
  return timed_upload_us * static_cast<double>(uploaded_bytes.count) /
         static_cast<double>(timed_upload_bytes.count);
}

CacheCounts LayerCounts::total() const {
  CacheCounts sum;
  for (const CacheCounts& counts : by_batch) sum += counts;
  return sum;
}

}  // namespace hotset::cache
