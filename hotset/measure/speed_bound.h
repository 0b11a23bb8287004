// The most tokens a second that a machine's rates allow for the bytes that tokens read: every lane
// busy all the time, nothing else taking any.
//   us/token = max(hits / device, misses / min(0.88 * (link + cpu), memory)) + dense / device
// Thread-compatible: plain values and pure functions.
#ifndef HOTSET_MEASURE_SPEED_BOUND_H_
#define HOTSET_MEASURE_SPEED_BOUND_H_

namespace hotset::measure {

// Means per token, in bytes, 0 or more.
struct ReadBytes {
  double hits = 0;    // of experts in device memory
  double misses = 0;  // of experts in host memory, whichever lane reads them
  double dense = 0;   // of everything else in device memory
};

// GB/s; 0 where one is not known.
struct MachineRates {
  double link = 0;
  double cpu = 0;     // expert bytes the CPU lane computes
  double device = 0;  // bytes the device reads while it computes
  double memory = 0;  // host memory, all readers together; not known: no limit

  bool operator==(const MachineRates&) const = default;
};

// 0 where it cannot be told: a rate is not known of which the bytes need one, or there are none.
double bound_us_per_token(const ReadBytes& bytes, const MachineRates& rates);

}  // namespace hotset::measure

#endif  // HOTSET_MEASURE_SPEED_BOUND_H_
