// The future as an input, for the offline bounds: when is an expert used next?
#ifndef HOTSET_POLICY_FUTURE_H_
#define HOTSET_POLICY_FUTURE_H_

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/policy/policy.h"

namespace hotset::policy {

inline constexpr uint64_t kNeverUsed = std::numeric_limits<uint64_t>::max();

// When an expert is used next. The lesser is worth more.
struct NextUse {
  uint64_t lookup = kNeverUsed;
  // Among the experts of that lookup, by their next uses from there. Without it two experts that
  // are used next by the same lookup look alike, and a bound loses hits: the one that stays is hit
  // there, may not leave there, and should be the one that is used again sooner.
  uint32_t rank = 0;

  constexpr auto operator<=>(const NextUse&) const = default;
};

// Answers for one group. Lookups of the group are numbered in the order in which they are planned.
// Thread-compatible.
class NextUseOracle {
 public:
  virtual ~NextUseOracle() = default;
  // The number of the lookup being planned.
  virtual uint64_t now() const = 0;
  // The first lookup after the one being planned that selects `expert`. Asked only about experts
  // that the lookup being planned selects.
  virtual NextUse next_use(ExpertIndex expert) const = 0;
};

// An oracle that was shown the whole trace of a group first: append() every lookup, rewind(), then
// advance() after each planned lookup. 8 bytes of memory per distinct expert of a lookup, 20 while
// it rewinds for the first time.
// Thread-compatible.
class RecordedFuture final : public NextUseOracle {
 public:
  // Requires: n_experts > 0.
  explicit RecordedFuture(int32_t n_experts);

  // The next lookup of the recording selects these experts; repeats within the lookup count once.
  // Errors: kInvalidArgument for an expert outside [0, n_experts), or more than 2^32 - 1 lookups;
  // nothing is recorded then.
  Status append(std::span<const ExpertIndex> experts);
  // Back to lookup 0. Required before the first question after an append.
  void rewind();
  // The lookup being planned is over.
  void advance() { ++now_; }

  uint64_t n_lookups() const { return n_lookups_; }
  uint64_t now() const override { return now_; }
  NextUse next_use(ExpertIndex expert) const override;

 private:
  struct RecordedUse {
    uint32_t lookup = 0;
    uint32_t rank = 0;  // see NextUse
  };
  void rank_uses();

  std::vector<std::vector<RecordedUse>> uses_;  // [n_experts][uses, ascending]
  mutable std::vector<size_t> cursor_;          // [n_experts], first use that may be after now_
  uint64_t n_lookups_ = 0;
  uint64_t now_ = 0;
  bool ranked_ = true;
};

}  // namespace hotset::policy

#endif  // HOTSET_POLICY_FUTURE_H_
