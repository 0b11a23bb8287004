#include "hotset/cache/statistics.h"

namespace hotset {

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

LookupCounts& LookupCounts::operator+=(const LookupCounts& other) {
  for (uint64_t LookupCounts::* field : kFields) this->*field += other.*field;
  return *this;
}

LookupCounts& LookupCounts::operator-=(const LookupCounts& other) {
  for (uint64_t LookupCounts::* field : kFields) this->*field -= other.*field;
  return *this;
}

double LookupCounts::hit_rate() const {
  return selected == 0 ? 0.0 : static_cast<double>(hits) / static_cast<double>(selected);
}

LookupCounts LayerStatistics::total() const {
  LookupCounts sum;
  for (const LookupCounts& counts : by_batch) sum += counts;
  return sum;
}

}  // namespace hotset
