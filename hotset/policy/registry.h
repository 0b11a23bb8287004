// Policies by name: class_lru, crf[:HALF_LIFE], crf-blend, crf-auto, lru, static, and the bounds
// belady, belady-demand and unbounded.
// Thread-safe: the registry is constant.
#ifndef HOTSET_POLICY_REGISTRY_H_
#define HOTSET_POLICY_REGISTRY_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "hotset/base/error.h"
#include "hotset/policy/future.h"
#include "hotset/policy/policy.h"

namespace hotset::policy {

// What a caller must know about a policy before it can run it.
struct PolicyTraits {
  bool needs_future = false;     // an offline bound: PolicyConfig::future must be set
  bool needs_profile = false;    // PolicyConfig::profile must be set
  bool always_inserts = true;    // never declines a miss that could get a slot
  bool needs_all_slots = false;  // unbounded: n_slots must be the number of experts of the group
};

struct PolicyConfig {
  PolicyShape shape = {};
  // Uses of each expert in an earlier run, [n_layers * n_expert]. Read at construction only.
  std::span<const uint64_t> profile = {};
  // Must outlive the policy.
  const NextUseOracle* future = nullptr;
};

// The policy of a cache whose user names none. docs/replay.md shows why.
inline constexpr std::string_view kDefaultPolicy = "crf-auto";

// Half-life of `crf` without a parameter, in tokens.
inline constexpr int32_t kDefaultCrfHalfLifeTokens = 32;
inline constexpr int32_t kMaxHalfLifeTokens = 1 << 16;

// The names without parameters, online policies first.
std::span<const std::string_view> policy_names();

// Errors: kNotFound for a name that is not registered, kInvalidArgument for a half-life outside
// [1, kMaxHalfLifeTokens].
Result<PolicyTraits> policy_traits(std::string_view name);

// Errors: those of policy_traits; kInvalidArgument for a shape that is not positive or too large, a
// profile or oracle that is missing or of the wrong length, n_slots above the number of experts, or
// below it where the policy needs all.
Result<std::unique_ptr<Policy>> make_policy(std::string_view name, const PolicyConfig& config);

}  // namespace hotset::policy

#endif  // HOTSET_POLICY_REGISTRY_H_
