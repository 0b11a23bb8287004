// Memory that limits of its own leave to this process, whatever the machine has.
// Thread-safe: reads files of the system.
#ifndef HOTSET_BASE_MEMORY_LIMITS_H_
#define HOTSET_BASE_MEMORY_LIMITS_H_

#include <string>

#include "hotset/base/units.h"

namespace hotset {

// Larger than any memory: there is no limit.
inline constexpr Bytes kNoMemoryLimit{int64_t{1} << 62};

// What the control groups of this process (v2 and v1, each with its parents) and its limit of
// address space leave; what files in memory take can be had back and counts as left.
Bytes memory_left_by_limits();

// Of control groups alone, with `root` in front of all paths.
Bytes memory_left_by_groups(const std::string& root);

}  // namespace hotset

#endif  // HOTSET_BASE_MEMORY_LIMITS_H_
