// What a replacement policy is asked and told. A policy ranks the slots of one group and never
// touches them: the cache asks (`choose_victims`, `score_after_use`, `admits`), acts, and tells
// what happened (`on_lookup`, `on_insert`, `on_evict`, `on_advance`). Questions change no answer:
// asked twice they say the same.
// A policy owns its own memory and allocates nothing after construction. It borrows what its
// config borrows (the oracle of an offline bound).
// Thread-compatible, const functions included: they may use scratch memory of the object.
#ifndef HOTSET_POLICY_POLICY_H_
#define HOTSET_POLICY_POLICY_H_

#include <cstdint>
#include <span>
#include <string>

namespace hotset::policy {

// An expert of a group: layer_index * n_expert + expert. Layers of a group are indexed in
// ascending order of their numbers in the model, so the order of indices is that of ExpertKey.
using ExpertIndex = int32_t;
inline constexpr int32_t kNoSlot = -1;

// The experts and slots of one group. All > 0, n_layers * n_expert < 2^31.
struct PolicyShape {
  int32_t n_layers = 0;
  int32_t n_expert = 0;  // of each layer
  int32_t n_slots = 0;

  constexpr int32_t n_experts() const { return n_layers * n_expert; }
};

// A slot that holds an expert and may be given to another one.
struct Victim {
  int32_t slot = kNoSlot;
  ExpertIndex expert = -1;  // what the slot holds
  double score = 0;         // Policy::score of that expert: expected uses per token
  double rank = 0;          // what the policy compared; `explain` says what it means
  int32_t list = -1;        // class_lru: the class; else -1
};

// The slots that the lookup being planned needs: slot s is needed if stamps[s] == stamp.
struct NeededSlots {
  std::span<const uint64_t> stamps = {};  // [n_slots]
  uint64_t stamp = 0;
  int32_t layer_index = 0;  // of the lookup

  bool contains(int32_t slot) const { return stamps[slot] == stamp; }
};

// One distinct expert of a lookup.
struct Use {
  ExpertIndex expert = -1;
  int32_t slot = kNoSlot;  // where it is, kNoSlot if it is missing
};

class Policy {
 public:
  virtual ~Policy() = default;

  // Questions.

  // Expected uses per token of `expert` now. For policies with a CRF: the CRF decayed to now by
  // the clock of its layer, times 1 - 2^(-1/half-life); for offline bounds about 1 / (lookups to
  // the next use), 0 for never (only known for resident experts).
  virtual double score(ExpertIndex expert) const = 0;

  // What `score` would be if `expert` were used by the lookup being planned. Misses are ordered by
  // it. Requires, for offline bounds: `expert` is selected by the lookup being planned.
  virtual double score_after_use(ExpertIndex expert) const = 0;

  // Writes the slots to give away, the first to go first, into `victims`; returns how many were
  // found: less than victims.size() if all others are needed, empty or reserved. Only slots that
  // were inserted (on_insert) are chosen. The answer is the same before and after on_lookup of the
  // lookup that `needed` belongs to.
  virtual int32_t choose_victims(const NeededSlots& needed, std::span<Victim> victims) const = 0;

  // Whether the missing `expert` should be put in the place of `victim` (nullptr: into an empty
  // slot). Always-inserting policies say yes to everything.
  virtual bool admits(ExpertIndex expert, const Victim* victim) const = 0;

  // Why this victim, in one line for people.
  virtual std::string explain(const Victim& victim) const = 0;
  // The state of the policy in one line for people: parameters; for crf-auto whom it follows, and
  // the hit rates of the candidates.
  virtual std::string explain() const = 0;

  // Notifications. Each must describe what the slot table now says; unchecked in release builds.

  // A lookup of layer `layer_index` uses these distinct experts, in order of first appearance in
  // its ids; hits are promoted in that order.
  virtual void on_lookup(int32_t layer_index, std::span<const Use> uses) = 0;
  // `expert` is in `slot` from now on, as its most recently used content. Its score is that of
  // its past uses.
  virtual void on_insert(ExpertIndex expert, int32_t slot) = 0;
  // `slot` no longer holds `expert`: it is empty or reserved.
  virtual void on_evict(ExpertIndex expert, int32_t slot) = 0;
  // The clock of the layer advances by the tokens of the lookup, after it is planned. n_tokens > 0.
  virtual void on_advance(int32_t layer_index, int32_t n_tokens) = 0;
};

}  // namespace hotset::policy

#endif  // HOTSET_POLICY_POLICY_H_
