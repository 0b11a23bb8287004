// Time comes in through an interface, so that tests and the emulated device can own it.
#ifndef HOTSET_BASE_CLOCK_H_
#define HOTSET_BASE_CLOCK_H_

namespace hotset {

// Thread-safe: implementations may be read from any thread.
class Clock {
 public:
  virtual ~Clock() = default;
  // Microseconds since an arbitrary start; never goes back.
  virtual double now_us() const = 0;
};

// The machine's monotonic clock. Lives for the whole process.
const Clock& steady_clock();

}  // namespace hotset

#endif  // HOTSET_BASE_CLOCK_H_
