#include "hotset/trace/synth.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "hotset/base/random.h"
#include "hotset/trace/writer.h"

namespace hotset::trace {
namespace {

// Tries before a draw without replacement gives up on chance and walks the experts that are left.
// Both give the same distribution; the walk costs n_expert.
constexpr int kMaxDrawTries = 16;

Status validate_options(const SynthOptions& options) {
  const auto bad = [](const char* field, auto found, const char* expected) {
    return make_error(ErrorCode::kInvalidArgument, "{} is {}, expected {}", field, found, expected);
  };
  if (options.experts_per_token < 1 || options.experts_per_token > options.n_expert) {
    return bad("experts per token", options.experts_per_token, "1 to the number of experts");
  }
  if (options.n_tokens < 1) return bad("number of tokens", options.n_tokens, "at least 1");
  if (options.tokens_per_step.empty()) {
    return bad("number of step sizes", options.tokens_per_step.size(), "at least 1");
  }
  for (const int32_t n_tokens : options.tokens_per_step) {
    if (n_tokens < 1 ||
        static_cast<int64_t>(n_tokens) * options.experts_per_token > kMaxTraceLookupIds) {
      return bad("tokens per step", n_tokens, "1 or more, with at most 2^24 ids");
    }
  }
  if (!(options.zipf_exponent >= 0 && options.zipf_exponent <= 8)) {
    return bad("zipf exponent", options.zipf_exponent, "0 to 8");
  }
  if (!(options.repeat >= 0 && options.repeat <= 1)) return bad("repeat", options.repeat, "0 to 1");
  if (options.n_topics < 1 || options.n_topics > 64) {
    return bad("number of topics", options.n_topics, "1 to 64");
  }
  if (!(options.topic_tokens >= 1)) {
    return bad("mean tokens of a topic", options.topic_tokens, "at least 1");
  }
  if (options.n_groups < 1 || options.n_groups > options.n_layer) {
    return bad("number of groups", options.n_groups, "1 to the number of layers");
  }
  if (options.n_devices < 1 || options.n_devices > options.n_groups) {
    return bad("number of devices", options.n_devices, "1 to the number of groups");
  }
  return {};
}

// One layer's routing: the rankings of all topics, and the experts of the token before.
class LayerRouter {
 public:
  LayerRouter(const SynthOptions& options, std::span<const double> cumulative, uint64_t seed)
      : cumulative_(cumulative),
        k_(options.experts_per_token),
        repeat_(options.repeat),
        random_(seed),
        taken_(options.n_expert) {
    for (int32_t topic = 0; topic < options.n_topics; ++topic) {
      std::vector<int32_t>& ranking = rankings_.emplace_back(options.n_expert);
      std::iota(ranking.begin(), ranking.end(), 0);
      for (size_t i = ranking.size(); i > 1; --i) {
        std::swap(ranking[i - 1], ranking[random_.below(i)]);
      }
    }
  }

  // Appends the k experts of the next token to `ids`.
  void route(int32_t topic, std::vector<int32_t>& ids) {
    const std::vector<int32_t>& ranking = rankings_[topic];
    chosen_.clear();
    for (const int32_t expert : previous_) {
      if (random_.uniform() < repeat_) take(expert);
    }
    while (chosen_.size() < k_) take(draw(ranking));
    for (const int32_t expert : chosen_) taken_[expert] = false;
    ids.insert(ids.end(), chosen_.begin(), chosen_.end());
    std::swap(previous_, chosen_);
  }

 private:
  void take(int32_t expert) {
    chosen_.push_back(expert);
    taken_[expert] = true;
  }

  bool is_taken(int32_t expert) const { return taken_[expert]; }

  int32_t draw(const std::vector<int32_t>& ranking) {
    for (int i = 0; i < kMaxDrawTries; ++i) {
      const double target = random_.uniform() * cumulative_.back();
      const auto found = std::upper_bound(cumulative_.begin(), cumulative_.end() - 1, target);
      const int32_t expert = ranking[found - cumulative_.begin()];
      if (!is_taken(expert)) return expert;
    }
    double rest = 0;
    for (size_t r = 0; r < ranking.size(); ++r) {
      if (!is_taken(ranking[r])) rest += weight(r);
    }
    double target = random_.uniform() * rest;
    int32_t last = -1;
    for (size_t r = 0; r < ranking.size() && target >= 0; ++r) {
      if (is_taken(ranking[r])) continue;
      last = ranking[r];
      target -= weight(r);
    }
    return last;
  }

  double weight(size_t rank) const {
    return rank == 0 ? cumulative_[0] : cumulative_[rank] - cumulative_[rank - 1];
  }

  std::span<const double> cumulative_;  // [n_expert], sums of the weights by rank
  size_t k_;
  double repeat_;
  Random random_;
  std::vector<std::vector<int32_t>> rankings_;  // [n_topics][n_expert]
  std::vector<int32_t> previous_;
  std::vector<int32_t> chosen_;
  std::vector<bool> taken_;  // [n_expert]
};

std::vector<double> cumulative_weights(const SynthOptions& options) {
  std::vector<double> sums(options.n_expert);
  double sum = 0;
  for (size_t r = 0; r < sums.size(); ++r) {
    sum += std::pow(static_cast<double>(r + 1), -options.zipf_exponent);
    sums[r] = sum;
  }
  return sums;
}

}  // namespace

Result<TraceHeader> synth_header(const SynthOptions& options) {
  HOTSET_RETURN_IF_ERROR(validate_options(options));
  TraceHeader header{.n_layer = options.n_layer, .experts_per_token = options.experts_per_token};
  if (header.n_layer > kMaxTraceLayers) HOTSET_RETURN_IF_ERROR(validate(header));
  std::vector<Bytes> device_bytes(options.n_devices);
  for (uint32_t g = 0; g < options.n_groups; ++g) {
    TraceGroup& group = header.groups.emplace_back();
    group.device = static_cast<uint32_t>(uint64_t{g} * options.n_devices / options.n_groups);
    group.n_expert = options.n_expert;
    const auto first = uint64_t{g} * options.n_layer / options.n_groups;
    const auto end = uint64_t{g + 1} * options.n_layer / options.n_groups;
    for (uint64_t layer = first; layer < end; ++layer) {
      group.layers.push_back(static_cast<uint32_t>(layer));
    }
    group.split_sum = options.n_devices;
    group.alignment_bytes = options.alignment_bytes;
    group.tensor_expert_bytes = options.tensor_expert_bytes;
    // Fields that do not depend on the sums of bytes, before anything is multiplied.
    group.group_host_bytes = group.device_host_bytes = {1};
    if (Status status = validate(group, header.n_layer); !status) {
      return std::unexpected(status.error());
    }
    group.group_host_bytes = group.expert_bytes() * group.total_experts();
    device_bytes[group.device] += group.group_host_bytes;
  }
  for (TraceGroup& group : header.groups) group.device_host_bytes = device_bytes[group.device];
  HOTSET_RETURN_IF_ERROR(validate(header));
  return header;
}

Status synthesize(const SynthOptions& options,
                  const std::function<Status(const TraceLookup&)>& sink) {
  HOTSET_TRY(const TraceHeader header, synth_header(options));
  const std::vector<double> cumulative = cumulative_weights(options);
  Random random(options.seed);
  std::vector<LayerRouter> routers;
  routers.reserve(header.n_layer);
  for (uint32_t i = 0; i < header.n_layer; ++i) {
    routers.emplace_back(options, cumulative, random.next_u64());
  }
  const auto draw_topic = [&] {
    return static_cast<int32_t>(random.below(static_cast<uint64_t>(options.n_topics)));
  };
  int32_t topic = draw_topic();
  std::vector<int32_t> topics;  // of the tokens of the step
  std::vector<int32_t> ids;
  for (int64_t done = 0; done < options.n_tokens;) {
    const int64_t step_tokens =
        std::min<int64_t>(options.tokens_per_step[random.below(options.tokens_per_step.size())],
                          options.n_tokens - done);
    topics.clear();
    for (int64_t t = 0; t < step_tokens; ++t) {
      topics.push_back(topic);
      if (random.uniform() < 1 / options.topic_tokens) topic = draw_topic();
    }
    for (uint32_t layer = 0; layer < header.n_layer; ++layer) {
      ids.clear();
      for (const int32_t token_topic : topics) routers[layer].route(token_topic, ids);
      HOTSET_RETURN_IF_ERROR(
          sink({.layer = static_cast<int32_t>(layer),
                .experts_per_token = static_cast<int32_t>(options.experts_per_token),
                .ids = ids}));
    }
    done += step_tokens;
  }
  return {};
}

Result<std::vector<std::byte>> synthesize_bytes(const SynthOptions& options) {
  HOTSET_TRY(const TraceHeader header, synth_header(options));
  std::vector<std::byte> bytes;
  encode_header(header, bytes);
  HOTSET_RETURN_IF_ERROR(synthesize(options, [&](const TraceLookup& lookup) -> Status {
    encode_lookup(lookup, bytes);
    return {};
  }));
  return bytes;
}

}  // namespace hotset::trace
