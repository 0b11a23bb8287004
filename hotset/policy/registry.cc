#include "hotset/policy/registry.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "hotset/policy/class_lru.h"
#include "hotset/policy/crf.h"
#include "hotset/policy/crf_auto.h"
#include "hotset/policy/crf_blend.h"
#include "hotset/policy/lru.h"
#include "hotset/policy/offline.h"
#include "hotset/policy/static_hot_set.h"

namespace hotset::policy {
namespace {

constexpr std::array<std::string_view, 9> kNames = {"class_lru", "crf",           "crf-blend",
                                                    "crf-auto",  "lru",           "static",
                                                    "belady",    "belady-demand", "unbounded"};

// A name of the registry with its parameter, if it has one.
struct ParsedName {
  std::string_view base;
  int32_t half_life_tokens = kDefaultCrfHalfLifeTokens;
};

Result<ParsedName> parse(std::string_view name) {
  const size_t colon = name.find(':');
  ParsedName parsed{.base = name.substr(0, colon)};
  const bool takes_parameter = parsed.base == "crf";
  if (std::ranges::find(kNames, parsed.base) == kNames.end() ||
      (colon != name.npos && !takes_parameter)) {
    std::string known;
    for (const std::string_view one : kNames) {
      if (!known.empty()) known += ", ";
      known += one;
    }
    return make_error(ErrorCode::kNotFound,
                      "policy \"{}\", expected one of {}; crf takes a half-life in tokens, as in "
                      "crf:8",
                      name, known);
  }
  if (colon != name.npos) {
    const std::string_view digits = name.substr(colon + 1);
    const char* end = std::to_address(digits.end());
    const auto [rest, code] =
        std::from_chars(std::to_address(digits.begin()), end, parsed.half_life_tokens);
    if (code != std::errc() || rest != end || parsed.half_life_tokens < 1 ||
        parsed.half_life_tokens > kMaxHalfLifeTokens) {
      return make_error(ErrorCode::kInvalidArgument,
                        "policy \"{}\": half-life \"{}\", expected 1 to {} tokens", name, digits,
                        kMaxHalfLifeTokens);
    }
  }
  return parsed;
}

PolicyTraits traits_of(std::string_view base) {
  if (base == "static") return {.needs_profile = true, .always_inserts = false};
  if (base == "belady") return {.needs_future = true, .always_inserts = false};
  if (base == "belady-demand") return {.needs_future = true};
  if (base == "unbounded") return {.needs_all_slots = true};
  return {};
}

Status check_config(std::string_view name, const PolicyTraits& traits, const PolicyConfig& config) {
  const PolicyShape& shape = config.shape;
  if (shape.n_layers < 1 || shape.n_expert < 1 || shape.n_slots < 1) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "policy {}: {} layers of {} experts and {} slots, expected at least 1 of each", name,
        shape.n_layers, shape.n_expert, shape.n_slots);
  }
  const int64_t n_experts = int64_t{shape.n_layers} * shape.n_expert;
  if (n_experts > INT32_MAX || shape.n_slots > n_experts ||
      (traits.needs_all_slots && shape.n_slots != n_experts)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "policy {}: {} slots for {} experts, expected {}", name, shape.n_slots,
                      n_experts,
                      traits.needs_all_slots ? "a slot for each" : "at most one for each");
  }
  if (traits.needs_profile && config.profile.size() != static_cast<size_t>(n_experts)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "policy {}: a profile of {} experts, expected one of {}", name,
                      config.profile.size(), n_experts);
  }
  if (traits.needs_future && config.future == nullptr) {
    return make_error(ErrorCode::kInvalidArgument,
                      "policy {} needs to know the future: it works on recorded traces only", name);
  }
  return {};
}

}  // namespace

std::span<const std::string_view> policy_names() { return kNames; }

Result<PolicyTraits> policy_traits(std::string_view name) {
  HOTSET_TRY(const ParsedName parsed, parse(name));
  return traits_of(parsed.base);
}

Result<std::unique_ptr<Policy>> make_policy(std::string_view name, const PolicyConfig& config) {
  HOTSET_TRY(const ParsedName parsed, parse(name));
  HOTSET_RETURN_IF_ERROR(check_config(name, traits_of(parsed.base), config));
  const PolicyShape& shape = config.shape;
  if (parsed.base == "class_lru") return std::make_unique<ClassLru>(shape);
  if (parsed.base == "crf") return std::make_unique<Crf>(shape, parsed.half_life_tokens);
  if (parsed.base == "crf-blend") return std::make_unique<CrfBlend>(shape);
  if (parsed.base == "crf-auto") return std::make_unique<CrfAuto>(shape);
  if (parsed.base == "lru") return std::make_unique<Lru>(shape);
  if (parsed.base == "static") return std::make_unique<StaticHotSet>(shape, config.profile);
  if (parsed.base == "belady") {
    return std::make_unique<Belady>(shape, *config.future, Belady::Admission::kMayDecline);
  }
  if (parsed.base == "belady-demand") {
    return std::make_unique<Belady>(shape, *config.future, Belady::Admission::kAlways);
  }
  return std::make_unique<Unbounded>();
}

}  // namespace hotset::policy
