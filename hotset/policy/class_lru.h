// class_lru, the reference policy (docs: design section 4). An expert's class is
// min(7, floor(log2(crf))) as of its last use; each class has one LRU list over all slots of the
// group. The victim is, among the least recently used slot of each class that the lookup does not
// need, the one of the largest age / 2^class, age in tokens of its own layer's clock; ties to the
// lower class. Choosing n victims costs O(8 n + needed slots passed over).
// Thread-compatible.
#ifndef HOTSET_POLICY_CLASS_LRU_H_
#define HOTSET_POLICY_CLASS_LRU_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "hotset/policy/crf_table.h"
#include "hotset/policy/policy.h"

namespace hotset {

class ClassLru final : public Policy {
 public:
  static constexpr int32_t kHalfLifeTokens = 128;
  static constexpr int32_t kClasses = 8;

  // Requires: a valid shape.
  explicit ClassLru(const PolicyShape& shape);

  double score(ExpertIndex expert) const override;
  double score_after_use(ExpertIndex expert) const override;
  int32_t choose_victims(const NeededSlots& needed, std::span<Victim> victims) const override;
  bool admits(ExpertIndex, const Victim*) const override { return true; }
  std::string explain(const Victim& victim) const override;
  std::string explain() const override;

  void on_lookup(int32_t layer_index, std::span<const Use> uses) override;
  void on_insert(ExpertIndex expert, int32_t slot) override;
  void on_evict(ExpertIndex expert, int32_t slot) override;
  void on_advance(int32_t layer_index, int32_t n_tokens) override;

 private:
  // Slots, and behind them one head per class, in circular lists: next of a head is the least
  // recently used slot.
  struct Link {
    int32_t previous = 0;
    int32_t next = 0;
    ExpertIndex expert = -1;
  };
  int32_t head(int32_t list) const { return n_slots_ + list; }
  Link& link(int32_t slot) { return links_[static_cast<size_t>(slot)]; }
  const Link& link(int32_t slot) const { return links_[static_cast<size_t>(slot)]; }
  // The first slot from `slot` on, towards the most recent end, that is not needed; or the head.
  int32_t skip_needed(int32_t slot, const NeededSlots& needed) const;
  void unlink(int32_t slot);
  void append(ExpertIndex expert, int32_t slot);

  int32_t n_slots_;
  CrfTable crf_;
  std::vector<Link> links_;  // [n_slots + kClasses]
};

}  // namespace hotset

#endif  // HOTSET_POLICY_CLASS_LRU_H_
