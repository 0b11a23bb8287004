// A device for machines without one, and for tests: memory of its own of a stated size, a compute
// and a transfer queue with a thread each, a link of a stated rate, and a clock that is real or
// virtual. It computes with ggml's CPU kernels, all graphs on one thread. Copies and graphs can be
// told to fail or to be late.
//
// Spec: "emu" or "emu:key=value,key=value,...". Keys, all optional:
//
//   mib=512        device memory
//   fast_mib=0     of which so much is the device's own: copies into what is allocated beyond it
//                  take ten times as long, as where a driver overcommits; 0: all of it
//   integrated=0   1: a device that shares the host's memory
//   gbps=12        rate of the link, GB/s (1 GB = 1e9 bytes)
//   us=15          latency of every copy and launch of every graph, microseconds
//   dev_gbps=200   rate at which graphs read weights and KV memory, GB/s
//   cpu_gbps=20    rate at which the CPU lane reads weights, GB/s
//   cpu_thread_gbps=0   of which each of its threads reads at most so much; 0: as much as there is
//   host_gbps=0    rate at which the host copies into pinned memory, GB/s; 0: it takes no time
//   clock=real     real: copies take at least their time, graphs what they take
//                  virtual: nothing sleeps, times are computed (device.h)
//
// Other conditions for a while of the virtual clock; a rate that is absent stays as it is:
//
//   change_us=t    when they begin; 0 is never
//   back_us=t      when all is as at first again; 0 is never
//   gbps2=x        rate of the link
//   dev_gbps2=x    rate at which graphs read
//   cpu_gbps2=x    rate of the CPU lane
//
// Faults, for tests; n counts from 1, 0 is never:
//
//   fail_copy=n    the n-th copy fails
//   short_copy=n   the n-th copy moves half of its bytes, which is noticed
//   fail_graph=n   the n-th graph fails
//   vanish=n       the device is gone from the n-th queue entry on (copies, graphs, events, waits)
//   late_us=x      each copy sleeps up to x microseconds more, on either clock; virtual times do
//                  not change
//   late_seed=n    seed of these delays
//   refuse_pinned=0|1   pinned memory comes back pageable
//   refuse_allocation=n the n-th allocation of device memory is refused
//   refuse_type=t  the device has no kernel that multiplies by id with matrices of ggml's type t
//
// Copies from and to memory that is not pinned are synchronous, as on real devices.
#ifndef HOTSET_DEVICE_EMULATED_DEVICE_H_
#define HOTSET_DEVICE_EMULATED_DEVICE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "hotset/base/error.h"
#include "hotset/base/units.h"
#include "hotset/device/device.h"

namespace hotset::device {

struct EmulatedFaults {
  int64_t fail_copy = 0;
  int64_t short_copy = 0;
  int64_t fail_graph = 0;
  int64_t vanish = 0;
  double late_us = 0;
  uint64_t late_seed = 1;
  bool refuse_pinned = false;
  int64_t refuse_allocation = 0;
  std::optional<ggml_type> refuse_type = {};
};

struct EmulatedOptions {
  Bytes memory = mib(512);  // 1 MiB to 16 TiB
  double fast_mib = 0;      // 0: all of it
  bool shares_host_memory = false;
  double link_gbps = 12;   // 1e-3 to 1e6
  double latency_us = 15;  // 0 to 1e6
  double device_gbps = 200;
  double cpu_gbps = 20;
  double cpu_thread_gbps = 0;  // 0: no limit
  double host_gbps = 0;        // 0: no limit
  bool virtual_clock = false;
  double change_us = 0;          // of the virtual clock; 0: never
  double back_us = 0;            // of the virtual clock; 0: never
  double changed_link_gbps = 0;  // 0: as before
  double changed_device_gbps = 0;
  double changed_cpu_gbps = 0;
  EmulatedFaults faults = {};
};

// Reads a spec. Errors: kInvalidArgument, naming the key, what was found and what is expected.
Result<EmulatedOptions> parse_emulated_spec(std::string_view spec);

// Errors: kInvalidArgument (threads), kDevice.
Result<std::unique_ptr<Device>> open_emulated_device(const EmulatedOptions& emulated,
                                                     const DeviceOptions& options);

}  // namespace hotset::device

#endif  // HOTSET_DEVICE_EMULATED_DEVICE_H_
