// The machine that results are of: what the system says, and the rate of its memory.
// Thread-compatible.
#ifndef HOTSET_MEASURE_MACHINE_INFO_H_
#define HOTSET_MEASURE_MACHINE_INFO_H_

#include <string>

#include "hotset/base/units.h"

namespace hotset::measure {

struct MachineInfo {
  std::string cpu;  // "unknown" where the system does not say
  int n_cores = 0;  // physical ones that this process may use
  Bytes ram;
};

MachineInfo machine_info();

// GB/s at which `n_threads` (1 to 512) together read memory that no cache holds: the best of three
// passes over 256 MiB, in some 100 ms. 0 where the memory is refused.
double measure_memory_gb_per_s(int n_threads);

}  // namespace hotset::measure

#endif  // HOTSET_MEASURE_MACHINE_INFO_H_
