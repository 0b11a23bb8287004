#include "hotset/base/clock.h"

#include <chrono>

namespace hotset {
namespace {

class SteadyClock final : public Clock {
 public:
  double now_us() const override {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double, std::micro>(since).count();
  }
};

}  // namespace

const Clock& steady_clock() {
  static const SteadyClock clock;
  return clock;
}

}  // namespace hotset
