#include "hotset/policy/future.h"

#include <algorithm>

namespace hotset {

RecordedFuture::RecordedFuture(int32_t n_experts)
    : uses_(static_cast<size_t>(n_experts)), cursor_(static_cast<size_t>(n_experts)) {}

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
    std::vector<uint32_t>& uses = uses_[static_cast<size_t>(expert)];
    if (uses.empty() || uses.back() != lookup) uses.push_back(lookup);
  }
  n_lookups_++;
  return {};
}

void RecordedFuture::rewind() {
  now_ = 0;
  std::ranges::fill(cursor_, size_t{0});
}

uint64_t RecordedFuture::next_use(ExpertIndex expert) const {
  const std::vector<uint32_t>& uses = uses_[static_cast<size_t>(expert)];
  size_t& cursor = cursor_[static_cast<size_t>(expert)];
  while (cursor < uses.size() && uses[cursor] <= now_) cursor++;
  return cursor < uses.size() ? uses[cursor] : kNeverUsed;
}

}  // namespace hotset
