#include "hotset/policy/future.h"

#include <algorithm>

namespace hotset::policy {

RecordedFuture::RecordedFuture(int32_t n_experts) : uses_(n_experts), cursor_(n_experts) {}

Status RecordedFuture::append(std::span<const ExpertIndex> experts) {
  if (n_lookups_ >= std::numeric_limits<uint32_t>::max()) {
    return make_error(ErrorCode::kInvalidArgument, "recorded future: more than {} lookups",
                      n_lookups_);
  }
  for (const ExpertIndex expert : experts) {
    if (expert < 0 || static_cast<size_t>(expert) >= uses_.size()) {
      return make_error(ErrorCode::kInvalidArgument,
                        "recorded future: expert {} of lookup {}, expected 0 to {}", expert,
                        n_lookups_, uses_.size() - 1);
    }
  }
  const auto lookup = static_cast<uint32_t>(n_lookups_);
  for (const ExpertIndex expert : experts) {
    std::vector<RecordedUse>& uses = uses_[expert];
    if (uses.empty() || uses.back().lookup != lookup) uses.push_back({.lookup = lookup});
  }
  n_lookups_++;
  ranked_ = false;
  return {};
}

void RecordedFuture::rewind() {
  if (!ranked_) rank_uses();
  ranked_ = true;
  now_ = 0;
  std::ranges::fill(cursor_, size_t{0});
}

// From the last lookup to the first: when a lookup is reached, the next uses of its experts are
// ranked already.
void RecordedFuture::rank_uses() {
  struct UseOfLookup {
    uint32_t expert = 0;
    size_t use = 0;  // in uses_[expert]
  };
  std::vector<size_t> ends(n_lookups_ + 1);  // of the lookups' parts of by_lookup
  for (const auto& uses : uses_) {
    for (const RecordedUse& use : uses) ends[use.lookup + 1]++;
  }
  for (size_t i = 0; i < n_lookups_; i++) ends[i + 1] += ends[i];
  std::vector<UseOfLookup> by_lookup(ends.back());
  for (size_t expert = uses_.size(); expert-- > 0;) {
    for (size_t use = uses_[expert].size(); use-- > 0;) {
      by_lookup[--ends[uses_[expert][use].lookup + 1]] = {static_cast<uint32_t>(expert), use};
    }
  }
  const auto after = [&](const UseOfLookup& of) -> NextUse {
    const std::vector<RecordedUse>& uses = uses_[of.expert];
    if (of.use + 1 == uses.size()) return {};
    return {uses[of.use + 1].lookup, uses[of.use + 1].rank};
  };
  size_t end = by_lookup.size();
  for (size_t lookup = n_lookups_; lookup-- > 0;) {
    const size_t begin = ends[lookup + 1];  // moved there by the loop above
    const auto part = std::span(by_lookup).subspan(begin, end - begin);
    std::ranges::stable_sort(part, {}, after);
    uint32_t rank = 0;
    for (size_t i = 0; i < part.size(); i++) {
      if (i > 0 && after(part[i - 1]) != after(part[i])) rank = static_cast<uint32_t>(i);
      uses_[part[i].expert][part[i].use].rank = rank;
    }
    end = begin;
  }
}

NextUse RecordedFuture::next_use(ExpertIndex expert) const {
  const std::vector<RecordedUse>& uses = uses_[expert];
  size_t& cursor = cursor_[expert];
  while (cursor < uses.size() && uses[cursor].lookup <= now_) cursor++;
  if (cursor == uses.size()) return {};
  return {uses[cursor].lookup, uses[cursor].rank};
}

}  // namespace hotset::policy
