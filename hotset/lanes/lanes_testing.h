// What the tests of this folder share.
#ifndef HOTSET_LANES_LANES_TESTING_H_
#define HOTSET_LANES_LANES_TESTING_H_

#include <cstdint>

namespace hotset::lanes {

// Every operator new of the test program, counted where it is replaced (lane_chooser_test.cc).
int64_t allocations_so_far();

}  // namespace hotset::lanes

#endif  // HOTSET_LANES_LANES_TESTING_H_
