#include <charconv>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "hotset/device/emulated_device.h"

namespace hotset::device {
namespace {

constexpr double kMaxGbps = 1e6;
constexpr double kMinGbps = 1e-3;
constexpr double kMaxUs = 1e6;  // a second: a test that sleeps longer has lost its way
constexpr double kMaxTimeUs = 1e12;
constexpr int64_t kMaxMib = 1 << 24;
constexpr int64_t kMaxCount = int64_t{1} << 62;

template <typename T>
bool parse_number(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

struct Key {
  std::string_view name;
  std::string expected;                        // what values look like, for the message
  std::function<bool(std::string_view)> read;  // false: not such a value
};

Key number(std::string_view name, double least, double most, double& target) {
  return {name, fmt::format("a number from {:g} to {:g}", least, most), [=, &target](auto text) {
            double value = 0;
            if (!parse_number(text, value) || !(value >= least && value <= most)) return false;
            target = value;
            return true;
          }};
}

Key count(std::string_view name, int64_t least, int64_t most, std::function<void(int64_t)> set) {
  return {name,
          most == kMaxCount ? fmt::format("a whole number of at least {}", least)
                            : fmt::format("a whole number from {} to {}", least, most),
          [=](std::string_view text) {
            int64_t value = 0;
            if (!parse_number(text, value) || value < least || value > most) return false;
            set(value);
            return true;
          }};
}

Key count(std::string_view name, int64_t& target) {
  return count(name, 0, kMaxCount, [&target](int64_t value) { target = value; });
}

std::vector<Key> keys(EmulatedOptions& options) {
  EmulatedFaults& faults = options.faults;
  return {
      count("mib", 1, kMaxMib, [&](int64_t value) { options.memory = mib(value); }),
      number("fast_mib", 0, static_cast<double>(kMaxMib), options.fast_mib),
      count("integrated", 0, 1, [&](int64_t value) { options.shares_host_memory = value == 1; }),
      number("gbps", kMinGbps, kMaxGbps, options.link_gbps),
      number("us", 0, kMaxUs, options.latency_us),
      number("dev_gbps", kMinGbps, kMaxGbps, options.device_gbps),
      number("cpu_gbps", kMinGbps, kMaxGbps, options.cpu_gbps),
      number("cpu_thread_gbps", 0, kMaxGbps, options.cpu_thread_gbps),
      number("host_gbps", 0, kMaxGbps, options.host_gbps),
      {"clock", "real or virtual",
       [&](std::string_view text) {
         options.virtual_clock = text == "virtual";
         return text == "virtual" || text == "real";
       }},
      number("change_us", 0, kMaxTimeUs, options.change_us),
      number("back_us", 0, kMaxTimeUs, options.back_us),
      number("gbps2", kMinGbps, kMaxGbps, options.changed_link_gbps),
      number("dev_gbps2", kMinGbps, kMaxGbps, options.changed_device_gbps),
      number("cpu_gbps2", kMinGbps, kMaxGbps, options.changed_cpu_gbps),
      count("fail_copy", faults.fail_copy),
      count("short_copy", faults.short_copy),
      count("fail_graph", faults.fail_graph),
      count("vanish", faults.vanish),
      number("late_us", 0, kMaxUs, faults.late_us),
      count("late_seed", 0, kMaxCount,
            [&](int64_t value) { faults.late_seed = static_cast<uint64_t>(value); }),
      count("refuse_pinned", 0, 1, [&](int64_t value) { faults.refuse_pinned = value == 1; }),
      count("refuse_allocation", faults.refuse_allocation),
      {"refuse_type", "a type of ggml's, as q4_0",
       [&](std::string_view text) {
         for (int i = 0; i < GGML_TYPE_COUNT && !faults.refuse_type; ++i) {
           const auto type = static_cast<ggml_type>(i);
           if (ggml_type_size(type) > 0 && text == ggml_type_name(type)) faults.refuse_type = type;
         }
         return faults.refuse_type.has_value();
       }},
  };
}

std::string names(const std::vector<Key>& known) {
  std::string text;
  for (const Key& key : known) text += fmt::format("{}{}", text.empty() ? "" : ", ", key.name);
  return text;
}

}  // namespace

Result<EmulatedOptions> parse_emulated_spec(std::string_view spec) {
  EmulatedOptions options;
  const std::vector<Key> known = keys(options);
  if (spec == "emu") return options;
  if (!spec.starts_with("emu:")) {
    return make_error(ErrorCode::kInvalidArgument,
                      "device: found '{}', expected emu or emu:key=value,...", spec);
  }
  std::string_view rest = spec.substr(4);
  std::vector<bool> seen(known.size(), false);
  for (bool more = true; more;) {
    const size_t comma = rest.find(',');
    const std::string_view pair = rest.substr(0, comma);
    more = comma != std::string_view::npos;
    rest = more ? rest.substr(comma + 1) : std::string_view();
    const size_t equals = pair.find('=');
    const std::string_view name = pair.substr(0, equals);
    size_t i = 0;
    while (i < known.size() && known[i].name != name) ++i;
    if (i == known.size()) {
      return make_error(ErrorCode::kInvalidArgument,
                        "device emu: found key '{}', expected one of: {}", name, names(known));
    }
    if (seen[i]) {
      return make_error(ErrorCode::kInvalidArgument, "device emu: found key '{}' twice", name);
    }
    seen[i] = true;
    if (equals == std::string_view::npos) {
      return make_error(ErrorCode::kInvalidArgument,
                        "device emu: {}: found no value, expected {}={}", name, name,
                        known[i].expected);
    }
    const std::string_view value = pair.substr(equals + 1);
    if (!known[i].read(value)) {
      return make_error(ErrorCode::kInvalidArgument, "device emu: {}: found '{}', expected {}",
                        name, value, known[i].expected);
    }
  }
  return options;
}

}  // namespace hotset::device
