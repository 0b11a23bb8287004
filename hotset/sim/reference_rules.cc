#include "hotset/sim/reference_rules.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace hotset::sim {
namespace {

constexpr int32_t kMaxZeroSlots = 64;
constexpr int32_t kMaxTokens = 32;
constexpr size_t kBitsPerWord = 64;

}  // namespace

int32_t reference_zero_slots(double share, int32_t k) {
  return share > 0 ? std::min(k, kMaxZeroSlots) : 0;
}

bool reference_bypasses(const trace::TraceLookup& lookup, int64_t n_expert, int64_t n_slots) {
  return n_slots == 0 || lookup.n_tokens() > kMaxTokens ||
         std::min<int64_t>(std::ssize(lookup.ids), n_expert) > n_slots;
}

size_t ZeroSlotLimit::apply(std::span<const int32_t> ids, int32_t k, std::span<int32_t> experts) {
  // A slot index never exceeds the number of experts placed before it.
  words_ = experts.size() / kBitsPerWord + 1;
  used_.assign(ids.size() / static_cast<size_t>(k) * words_, 0);
  size_t n_cpu = experts.size();
  for (size_t i = 0; i < n_cpu;) {
    const int32_t slot = lowest_free_slot(ids, k, experts[i]);
    if (slot >= n_zero_) {
      std::swap(experts[i], experts[--n_cpu]);
      continue;
    }
    const auto bit = static_cast<size_t>(slot);
    for (const int32_t token : tokens_) {
      used_[static_cast<size_t>(token) * words_ + bit / kBitsPerWord] |= uint64_t{1}
                                                                         << (bit % kBitsPerWord);
    }
    ++i;
  }
  return n_cpu;
}

int32_t ZeroSlotLimit::lowest_free_slot(std::span<const int32_t> ids, int32_t k, int32_t expert) {
  tokens_.clear();
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] == expert) tokens_.push_back(static_cast<int32_t>(i) / k);
  }
  for (size_t word = 0;; ++word) {
    uint64_t used = 0;
    for (const int32_t token : tokens_) {
      used |= used_[static_cast<size_t>(token) * words_ + word];
    }
    if (used != UINT64_MAX) {
      return static_cast<int32_t>(word * kBitsPerWord) + std::countr_one(used);
    }
  }
}

}  // namespace hotset::sim
