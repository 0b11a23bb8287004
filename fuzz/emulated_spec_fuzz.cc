// The spec of an emulated device over arbitrary text: an error that says something, or options
// within their documented ranges.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "hotset/device/emulated_device.h"

namespace {

void check(bool condition) {
  if (!condition) std::abort();
}

bool is_rate(double gbps) { return gbps >= 1e-3 && gbps <= 1e6; }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n_bytes) {
  const std::string_view spec(reinterpret_cast<const char*>(data), n_bytes);
  const auto options = hotset::device::parse_emulated_spec(spec);
  if (!options) {
    check(options.error().code == hotset::ErrorCode::kInvalidArgument);
    check(options.error().message.find("expected") != std::string::npos ||
          options.error().message.find("twice") != std::string::npos);
    return 0;
  }
  check(options->memory >= hotset::mib(1) && options->memory <= hotset::gib(1 << 14));
  check(is_rate(options->link_gbps) && is_rate(options->device_gbps) && is_rate(options->cpu_gbps));
  check(options->latency_us >= 0 && options->latency_us <= 1e6);
  const hotset::device::EmulatedFaults& faults = options->faults;
  check(faults.fail_copy >= 0 && faults.short_copy >= 0 && faults.fail_graph >= 0 &&
        faults.vanish >= 0 && faults.refuse_allocation >= 0);
  check(faults.late_us >= 0 && faults.late_us <= 1e6);
  return 0;
}
