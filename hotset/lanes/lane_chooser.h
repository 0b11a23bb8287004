// Which misses of a lookup are uploaded and which the CPU computes: design.md section 5.
//
// With the misses ordered by `c(tokens_i) + V_i` descending, u uploads (the first u) and n - u
// experts on the CPU cost
//   dev(u) = max(t_shared + t_hit, [u > 0] (t_launch + u * bytes / l(u))) + t_pairs(u)
//   cpu(u) = [u < n] (t_turn + sum over i > u of c(tokens_i) + t_rows)
//   J(u)   = max(dev(u), cpu(u)) - sum over i <= u of V_i - F(u)
// and every u is tried. F(u) is what the background copies are worth that the link has time for
// besides: of the experts behind the first u, in their order, V_i each, the last one in part. So
// an upload is credited only with what a fill would not bring as well.
#ifndef HOTSET_LANES_LANE_CHOOSER_H_
#define HOTSET_LANES_LANE_CHOOSER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/base/units.h"
#include "hotset/lanes/lane_costs.h"

namespace hotset::lanes {

// A selected expert that is not on the device.
struct UploadCandidate {
  int32_t expert = 0;    // 0 or more; orders misses that are worth the same
  int32_t n_tokens = 1;  // tokens of the lookup that selected it, 1 or more
  double value_us = 0;   // V_i: what its upload saves later, 0 or more (upload_value.h)
};

// What the lookup does besides its misses.
struct LookupWork {
  Bytes expert_bytes = {};        // of one expert, above 0
  double shared_us = 0;           // t_shared: device work that does not depend on the ids
  double hit_us = 0;              // t_hit: device work on resident experts
  size_t max_uploads = SIZE_MAX;  // slots that may be filled; more misses than this go to the CPU
  double fill_us = 0;             // copy time of a fill; 0: no fills
  double fill_backlog_us = 0;     // of fills that are on their way
  double other_us = 0;  // of the layer beside its experts: time in which the link may copy
};

// What a split waits for.
enum class BindingLane {
  kHits,  // shared and resident experts on the device
  kLink,  // the uploads
  kCpu,   // the CPU lane
};

// "hits", "link", "cpu".
std::string_view binding_lane_name(BindingLane lane);

// One u that was tried.
struct SplitCost {
  double device_us = 0;  // dev(u)
  double cpu_us = 0;     // cpu(u)
  double value_us = 0;   // sum over i <= u of V_i, and F(u)
  double link_us = 0;    // of the uploads
  double cost_us = 0;    // J(u)
  BindingLane binding = BindingLane::kHits;

  // When the lookup is done: max(dev(u), cpu(u)).
  double done_us() const { return device_us > cpu_us ? device_us : cpu_us; }
};

// A decision, and why. The spans belong to the chooser and hold until its next `choose`.
struct LaneChoice {
  size_t n_uploads = 0;
  // Indices of the misses, best to upload first: order[0 .. n_uploads) are uploaded, the rest go
  // to the CPU.
  std::span<const uint32_t> order = {};
  // J of u = 0 .. min(n, max_uploads).
  std::span<const SplitCost> candidates = {};

  std::span<const uint32_t> uploads() const { return order.first(n_uploads); }
  std::span<const uint32_t> cpu() const { return order.subspan(n_uploads); }
  // Requires: a choice made by `choose`.
  const SplitCost& cost() const { return candidates[n_uploads]; }
};

// "2 of 5 misses uploaded: J 142.0 us, done at 180.0 us, bound by cpu" and a line per candidate.
std::string describe(const LaneChoice& choice);

// Owns the scratch of its decisions: `choose` allocates nothing when it succeeds.
// Thread-compatible.
class LaneChooser {
 public:
  // `max_misses`: of one lookup.
  explicit LaneChooser(size_t max_misses);

  // The split of smallest J; of splits that cost the same the one with fewer uploads. Misses of
  // equal `c + V` are taken by ascending expert, then by place. The same arguments give the same
  // answer. c in the order is that of `cpu_concurrent`, the only one that an order can matter to.
  // misses [n], n <= max_misses; n = 0 is a choice without uploads.
  // Errors: kInvalidArgument, naming the field: a cost, time or value negative or not finite,
  // expert below 0, n_tokens below 1, expert_bytes not above 0, too many misses.
  Result<LaneChoice> choose(const LaneCosts& costs, const LookupWork& work,
                            std::span<const UploadCandidate> misses);

 private:
  void order_misses(const LinearCost& cpu_expert_us, std::span<const UploadCandidate> misses);

  std::vector<uint32_t> order_;        // [max_misses]
  std::vector<double> rank_;           // [max_misses], c + V by index of the miss
  std::vector<SplitCost> candidates_;  // [max_misses + 1]
};

}  // namespace hotset::lanes

#endif  // HOTSET_LANES_LANE_CHOOSER_H_
