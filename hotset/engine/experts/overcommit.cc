#include "hotset/engine/experts/overcommit.h"

#include <algorithm>

#include "hotset/lanes/split_costs.h"

namespace hotset::engine {
namespace {

using device::QueueId;

// A link is not four times slower by chance; host memory behind a driver is ten times and more.
constexpr double kFarSlower = 4;

// One bank: a tensor of a group, [n_slots + staging + 1] experts.
struct Bank {
  const cache::GroupSpec* group = nullptr;
  const BankedLayer* at = nullptr;
  ggml_tensor* tensor = nullptr;
  size_t member = 0;  // of bank_tensors()
  double first_us = 0;

  int64_t n_places() const { return tensor->ne[2]; }
  double expert_bytes() const { return static_cast<double>(tensor->nb[2]); }
};

class CopyTimes {
 public:
  CopyTimes(const LoadedModel& model, device::Device& device) : model_(model), device_(device) {}

  // Of one expert to a place of a bank, in microseconds: the one that belongs there, if the group
  // is resident.
  Result<double> us(const Bank& bank, int64_t place) const {
    const cache::GroupSpec& group = *bank.group;
    // The pad slot behind a resident group's experts stays zero.
    if (bank.at->resident()) place = std::min(place, group.n_experts() - 1);
    const int64_t i = bank.at->resident() ? place : 0;
    const auto layer = static_cast<size_t>(group.layers[i / group.n_expert]);
    const ggml_tensor* from = bank_tensors(model_.weights().layers[layer].experts)[bank.member];
    const auto* bytes = static_cast<const uint8_t*>(from->data) +
                        static_cast<size_t>(i % group.n_expert) * from->nb[2];
    // The fastest of some counts, because others are disturbed.
    const int n_times = device_.info().virtual_clock ? 1 : 5;
    double best_us = 0;
    for (int n = 0; n < n_times; ++n) {
      const double start_us = device_.now_us();
      HOTSET_RETURN_IF_ERROR(device_.upload(QueueId::kTransfer, bank.tensor,
                                            static_cast<size_t>(place) * from->nb[2], bytes,
                                            from->nb[2], {"calibrate", -1}));
      HOTSET_RETURN_IF_ERROR(device_.wait_idle());
      const double us = device_.now_us() - start_us;
      best_us = n == 0 ? us : std::min(best_us, us);
    }
    return best_us;
  }

  // How many places of a bank are as fast as its first one, if a copy there may take `least_us`.
  Result<int64_t> n_fast(const Bank& bank, double least_us) const {
    const double slow_us = kFarSlower * least_us;
    if (bank.first_us > slow_us) return 0;
    // The last expert, not the pad slot, whose content must stay.
    int64_t slow = bank.n_places() - 2;
    HOTSET_TRY(const double last_us, us(bank, slow));
    if (last_us <= slow_us) return bank.n_places();
    int64_t fast = 0;
    while (slow - fast > 1) {
      const int64_t middle = (fast + slow) / 2;
      HOTSET_TRY(const double middle_us, us(bank, middle));
      (middle_us > slow_us ? slow : fast) = middle;
    }
    return slow;
  }

 private:
  const LoadedModel& model_;
  device::Device& device_;
};

}  // namespace

Result<std::optional<ShrunkCache>> without_slow_slots(
    const LoadedModel& model, device::Device& device, const ExpertBanks& banks,
    const std::vector<cache::CacheGroup>& groups) {
  const CopyTimes times(model, device);
  std::vector<Bank> all;
  for (const cache::CacheGroup& group : groups) {
    if (group.n_slots == 0) continue;
    const BankedLayer* at = banks.layer(group.spec.layers.front());
    size_t member = 0;
    for (const ggml_tensor* tensor : bank_tensors(at->banks)) {
      Bank bank{&group.spec, at, const_cast<ggml_tensor*>(tensor), member++};
      HOTSET_TRY(bank.first_us, times.us(bank, 0));
      all.push_back(bank);
    }
  }
  // A bank may lie in slow memory as a whole: the fastest one says what copies can be.
  const auto us_per_byte = [](const Bank& bank) { return bank.first_us / bank.expert_bytes(); };
  if (all.empty()) return std::nullopt;
  const double best_per_byte = us_per_byte(*std::ranges::min_element(all, {}, us_per_byte));
  ShrunkCache shrunk{.groups = groups, .found = ""};
  for (cache::CacheGroup& group : shrunk.groups) {
    double fast_bytes = 0;
    double all_bytes = 0;
    for (const Bank& bank : all) {
      if (bank.group->layers != group.spec.layers) continue;
      HOTSET_TRY(const int64_t n_fast, times.n_fast(bank, best_per_byte * bank.expert_bytes()));
      fast_bytes += static_cast<double>(n_fast) * bank.expert_bytes();
      all_bytes += static_cast<double>(bank.n_places()) * bank.expert_bytes();
    }
    if (fast_bytes >= all_bytes) continue;
    const auto n_expert_bytes = static_cast<double>(group.spec.bytes_per_expert().count);
    // A group that was resident needs staging places once it is not.
    const auto n_slots = static_cast<int64_t>(fast_bytes / n_expert_bytes) -
                         2 * lanes::stage_experts(group.spec) - 1;
    shrunk.found +=
        fmt::format("{}layers {}-{}: {} slots become {}", shrunk.found.empty() ? "" : ", ",
                    group.spec.layers.front(), group.spec.layers.back(), group.n_slots,
                    std::max<int64_t>(0, n_slots));
    group.n_slots = std::clamp<int64_t>(n_slots, 0, group.n_slots);
  }
  if (shrunk.found.empty()) return std::nullopt;
  return shrunk;
}

}  // namespace hotset::engine
