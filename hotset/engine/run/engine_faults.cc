// What happens when numbers turn out to be none.
//
// What is not finite stays so: a token's hidden state is a sum that each layer adds to. So it is
// seen at the end of the step in which it arises, in what enters or leaves the last layer, before
// another step reads the keys and values that come of it. Within the step it may have spread
// from the sequence whose fault it is (kv_faults.h): first into its keys and values, and from
// these, one layer later, into those of others. So whoever has the first ones is to blame.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "hotset/base/log.h"
#include "hotset/engine/kv/kv_faults.h"
#include "hotset/engine/run/engine.h"
#include "hotset/engine/weights/weight_faults.h"

namespace hotset::engine {
namespace {

uint64_t bit(SequenceId sequence) { return uint64_t{1} << sequence; }

bool all_finite(std::span<const float> values) {
  // An exponent of all ones: NaN or infinite. Compilers make vectors of this loop.
  constexpr uint32_t kExponent = 0x7F800000;
  uint32_t any = 0;
  for (const float v : values) any |= (std::bit_cast<uint32_t>(v) & kExponent) == kExponent ? 1 : 0;
  return any == 0;
}

// `ubatch` with the tokens of the sequences `failed` replaced by another one's, sound if there is
// one: the numbers of all others do not depend on what stands there, but for how many tokens there
// are.
std::vector<BatchToken> with_stand_ins(std::span<const BatchToken> ubatch, uint64_t failed,
                                       uint64_t faulty) {
  const auto is_in = [](uint64_t set) {
    return [set](const BatchToken& t) { return (set & bit(t.sequence)) != 0; };
  };
  auto other = std::ranges::find_if_not(ubatch, is_in(failed | faulty));
  if (other == ubatch.end()) other = std::ranges::find_if_not(ubatch, is_in(failed));
  HOTSET_CHECK(other != ubatch.end());
  std::vector<BatchToken> tokens(ubatch.begin(), ubatch.end());
  for (BatchToken& t : tokens) {
    if (!is_in(failed)(t)) continue;
    const bool wants_logits = t.want_logits;
    t = *other;
    t.want_logits = wants_logits;
  }
  return tokens;
}

}  // namespace

Status Engine::unless_lost(Status status) {
  if (model_->report().mapped == Bytes{}) return status;  // nothing reads the file any more
  const Status checked = model_->file().check();
  if (checked) return status;
  // What came to the device unnoticed, in the background, may be zeros.
  if (cache_ != nullptr) cache_->leave_unused("the model's file cannot be read any more");
  if (std::exchange(lost_, checked.error().message) != lost_) log_warning("{}", lost_);
  return checked;
}

Status Engine::run_tokens(std::span<const BatchToken> tokens) {
  const size_t first_logit = logits_.size();
  const Status status = unless_lost(executor_->run(tokens, cells_, logits_));
  if (status || lost_ != status.error().message) return status;
  // Perhaps it read nothing of what is lost: a copy in the background did, or nobody.
  logits_.resize(first_logit);
  return unless_lost(executor_->run(tokens, cells_, logits_));
}

uint64_t Engine::faulty_sequences(std::span<const BatchToken> ubatch, size_t first_logit) const {
  const auto n_vocab = static_cast<size_t>(spec().n_vocab);
  const std::span<const float> sums = executor_->hidden_sums();
  const size_t n_outputs = (logits_.size() - first_logit) / n_vocab;
  const bool has_sums_before = sums.size() > n_outputs;
  const float* behind = sums.data() + (sums.size() - n_outputs);
  const float* row = logits_.data() + first_logit;
  uint64_t faulty = 0;
  for (size_t i = 0; i < ubatch.size(); ++i) {
    bool is_finite = !has_sums_before || std::isfinite(sums[i]);
    if (ubatch[i].want_logits) {
      is_finite = is_finite && std::isfinite(*behind++) && all_finite({row, n_vocab});
      row += n_vocab;
    }
    if (!is_finite) faulty |= bit(ubatch[i].sequence);
  }
  return faulty;
}

Status Engine::contain_faults(std::span<const BatchToken> ubatch, size_t first_logit) {
  uint64_t faulty = faulty_sequences(ubatch, first_logit);
  bool was_idle = false;
  while (faulty != 0) {
    HOTSET_TRY(const KvFaults in_kv, KvFaults::find(*kv_));
    const int64_t layer = in_kv.first_layer();
    // Without a trace in the KV memory it cannot have spread.
    uint64_t to_blame = layer < spec().n_layer ? in_kv.sequences() : faulty;
    // The first may belong to nobody any more, or stand in for one that has failed; but only once,
    // so that this ends.
    if ((to_blame & ~failed_) == 0 && std::exchange(was_idle, true)) to_blame = faulty;
    HOTSET_RETURN_IF_ERROR(in_kv.clear(*kv_, to_blame | failed_));
    const std::string message = describe_fault(layer);
    for (uint64_t left = to_blame & ~failed_; left != 0; left &= left - 1) {
      faults_.push_back({.sequence = std::countr_zero(left), .message = message});
    }
    failed_ |= to_blame;
    // Whoever has read such cells may have got numbers of them, but wrong ones.
    const bool may_have_spread = layer < spec().n_layer;
    const bool all_failed =
        std::ranges::all_of(ubatch, [this](const BatchToken& t) { return has_failed(t.sequence); });
    if (all_failed || (!may_have_spread && (faulty & ~failed_) == 0)) break;
    const std::vector<BatchToken> tokens = with_stand_ins(ubatch, failed_, faulty);
    logits_.resize(first_logit);
    HOTSET_RETURN_IF_ERROR(run_tokens(tokens));
    faulty = faulty_sequences(ubatch, first_logit) & ~failed_;
  }
  for (uint64_t left = failed_; left != 0; left &= left - 1) {
    kv_->forget(std::countr_zero(left), 0, std::numeric_limits<int32_t>::max());
  }
  return {};
}

std::string Engine::describe_fault(int64_t layer) {
  const auto [at, is_new] = faults_by_layer_.try_emplace(layer);
  if (!is_new) return at->second;
  const int64_t n_layer = spec().n_layer;
  // What a layer is given, the one before it has computed. Without a trace in the KV memory it is
  // the last one's, unless it was lost because kernels quantize.
  std::vector<int64_t> layers = {layer};
  if (layer > 0) layers.insert(layers.begin(), layer - 1);
  for (int64_t l = 0; layer == n_layer && l + 1 < n_layer; ++l) layers.push_back(l);
  std::string where = find_weight_fault(model_->file(), layers, n_layer);
  if (!where.empty()) where = fmt::format("; so is a weight of {}", where);
  const std::string first = layer == n_layer ? ""
                            : layer == 0
                                ? ", first in layer 0"
                                : fmt::format(", first in layer {} or {}", layer - 1, layer);
  at->second = fmt::format("the model computed numbers that are NaN or infinite{}{}", first, where);
  return at->second;
}

}  // namespace hotset::engine
