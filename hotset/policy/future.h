// The future as an input, for the offline bounds: when is an expert used next?
#ifndef HOTSET_POLICY_FUTURE_H_
#define HOTSET_POLICY_FUTURE_H_

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/policy/policy.h"

namespace hotset {

inline constexpr uint64_t kNeverUsed = std::numeric_limits<uint64_t>::max();

// Answers for one group. Lookups of the group are numbered in the order in which they are planned.
// Thread-compatible.
class NextUseOracle {
 public:
  virtual ~NextUseOracle() = default;
  // The number of the lookup being planned.
  virtual uint64_t now() const = 0;
  // The number of the first lookup after the one being planned that selects `expert`; kNeverUsed
  // if none does. Asked only about experts that the lookup being planned selects.
  virtual uint64_t next_use(ExpertIndex expert) const = 0;
};

// An oracle that was shown the whole trace of a group first: append() every lookup, rewind(), then
// advance() after each planned lookup. 4 bytes of memory per distinct expert of a lookup.
// Thread-compatible.
class RecordedFuture final : public NextUseOracle {
 public:
  // Requires: n_experts > 0.
  explicit RecordedFuture(int32_t n_experts);

  // The next lookup of the recording selects these experts; repeats within the lookup count once.
  // Errors: kInvalidArgument for an expert outside [0, n_experts), or more than 2^32 - 1 lookups;
  // nothing is recorded then.
  Status append(std::span<const ExpertIndex> experts);
  // Back to lookup 0.
  void rewind();
  // The lookup being planned is over.
  void advance() { ++now_; }

  uint64_t n_lookups() const { return n_lookups_; }
  uint64_t now() const override { return now_; }
  uint64_t next_use(ExpertIndex expert) const override;

 private:
  std::vector<std::vector<uint32_t>> uses_;  // [n_experts][lookups, ascending]
  mutable std::vector<size_t> cursor_;       // [n_experts], first use that may be after now_
  uint64_t n_lookups_ = 0;
  uint64_t now_ = 0;
};

}  // namespace hotset

#endif  // HOTSET_POLICY_FUTURE_H_
