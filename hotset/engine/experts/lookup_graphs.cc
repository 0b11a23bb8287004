#include "hotset/engine/experts/lookup_graphs.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "hotset/engine/run/cpu_executor.h"
#include "hotset/engine/run/device_graphs.h"

namespace hotset::engine {
namespace {

constexpr size_t kNodes = 64;  // of a graph here

// More graphs of one kind than this are not kept: lookups of up to 32 tokens in 64 layers.
constexpr size_t kMaxKept = 4096;

ggml_tensor* as_pairs(ggml_context* c, ggml_tensor* ids, bool one_token) {
  const int64_t n = ggml_nelements(ids);
  return one_token ? ggml_reshape_2d(c, ids, n, 1) : ggml_reshape_2d(c, ids, 1, n);
}

}  // namespace

int64_t pair_bucket(int64_t n) {
  HOTSET_CHECK(n > 0);
  if (n <= 8) return n;
  const int64_t step = int64_t{1} << (std::bit_width(static_cast<uint64_t>(n - 1)) - 4);
  return (n + step - 1) / step * step;
}

int64_t max_list_numbers(int64_t n_pairs, int64_t n_expert) {
  const int64_t n_lists = n_expert + n_pairs / kMaxPairsPerCall + 1;
  // A bucket is at most an eighth above its pairs, a stride less than 64 above its bucket.
  return static_cast<int64_t>(kPairListParts) * (n_pairs + n_pairs / 8 + 64 * n_lists);
}

int64_t LookupGraphs::max_pairs(bool one_token) const {
  const int64_t k = p_.model.spec().router.n_expert_used;
  return one_token ? k : k * p_.n_ubatch;
}

Result<KeptGraph> LookupGraphs::build_all_pairs(int64_t layer, size_t parity,
                                                int32_t n_tokens) const {
  const model::ModelSpec& spec = p_.model.spec();
  const BankedLayer& banked = *p_.banks.layer(layer);
  const CrossTensors::Routed& routed = p_.cross.routed[parity];
  const int64_t k = spec.router.n_expert_used;
  const int64_t n_pairs = k * n_tokens;
  HOTSET_TRY(KeptGraph kept, new_kept_graph(kNodes));
  ggml_context* c = kept.context.get();
  GraphBuilder g(c, kept.graph, spec, p_.model.weights(), p_.kv, {.n_tokens = n_tokens}, {});
  ggml_tensor* ids = part_of(c, routed.ids, n_pairs);
  ggml_tensor* slots = as_pairs(c, ggml_get_rows(c, banked.map, ids), n_tokens == 1);
  ids = as_pairs(c, ids, n_tokens == 1);
  ggml_tensor* x = part_of(c, routed.x, spec.n_embd, n_tokens);
  if (n_tokens > 1) x = ggml_get_rows(c, x, part_of(c, p_.cross.pair_tokens, n_pairs));
  place(g, g.experts(x, ids, slots, banked.banks), p_.cross.results);
  kept.reads = graph_reads(kept.graph);
  return kept;
}

Result<KeptGraph> LookupGraphs::build_listed_pairs(int64_t layer, size_t parity, bool one_token,
                                                   int64_t n) const {
  const model::ModelSpec& spec = p_.model.spec();
  const BankedLayer& banked = *p_.banks.layer(layer);
  HOTSET_TRY(KeptGraph kept, new_kept_graph(kNodes));
  ggml_context* c = kept.context.get();
  GraphBuilder g(c, kept.graph, spec, p_.model.weights(), p_.kv, {}, {});
  const size_t part_bytes = static_cast<size_t>(pair_list_stride(n)) * sizeof(int32_t);
  const auto list = [&](PairListPart part) {
    return part_of(c, p_.cross.pair_list, n, 1, 1, part * part_bytes);
  };
  ggml_tensor* x = part_of(c, p_.cross.routed[parity].x, spec.n_embd, one_token ? 1 : p_.n_ubatch);
  if (!one_token) x = ggml_get_rows(c, x, list(kPairTokens));
  ggml_tensor* computed = g.experts(x, as_pairs(c, list(kPairExperts), one_token),
                                    as_pairs(c, list(kPairSlots), one_token), banked.banks);
  computed = ggml_reshape_2d(c, computed, spec.n_embd, n);
  ggml_tensor* results = part_of(c, p_.cross.results, spec.n_embd, p_.cross.results->ne[1]);
  ggml_build_forward_expand(kept.graph, ggml_set_rows(c, results, computed, list(kPairRows)));
  kept.reads = graph_reads(kept.graph);
  return kept;
}

Result<KeptGraph> LookupGraphs::build_scatter(int64_t n) const {
  HOTSET_TRY(KeptGraph kept, new_kept_graph(kNodes));
  ggml_context* c = kept.context.get();
  const int64_t n_embd = p_.model.spec().n_embd;
  ggml_tensor* results = part_of(c, p_.cross.results, n_embd, p_.cross.results->ne[1]);
  ggml_build_forward_expand(kept.graph,
                            ggml_set_rows(c, results, part_of(c, p_.cross.cpu_rows, n_embd, n),
                                          part_of(c, p_.cross.row_list, n)));
  return kept;
}

Result<KeptGraph> LookupGraphs::build_cpu_pairs(int64_t layer, bool one_token, int64_t n) const {
  const model::ModelSpec& spec = p_.model.spec();
  HOTSET_TRY(KeptGraph kept, new_kept_graph(kNodes));
  ggml_context* c = kept.context.get();
  GraphBuilder g(c, kept.graph, spec, p_.model.weights(), p_.kv, {}, {});
  ggml_tensor* x = part_of(c, p_.host.x, spec.n_embd, one_token ? 1 : p_.n_ubatch);
  if (!one_token) x = ggml_get_rows(c, x, part_of(c, p_.host.cpu_tokens, n));
  ggml_tensor* ids = as_pairs(c, part_of(c, p_.host.cpu_ids, n), one_token);
  place(g, g.experts(x, ids, ids, g.layer(layer).experts), p_.host.cpu_rows);
  return kept;
}

Result<LookupGraphs::CpuGraph> LookupGraphs::build_scaled_cpu_pairs(int64_t layer,
                                                                    bool one_token) const {
  // What differs between the graphs of n and of n - 1 pairs is in proportion to the pairs. The CPU
  // backend looks at a graph anew each time it computes it, so these numbers may be set in between.
  const int64_t n = max_pairs(one_token);
  CpuGraph cpu;
  HOTSET_TRY(cpu.kept, build_cpu_pairs(layer, one_token, n));
  cpu.max_pairs = n;
  if (n == 1) return cpu;
  HOTSET_TRY(const KeptGraph other, build_cpu_pairs(layer, one_token, n - 1));
  ggml_tensor* t = ggml_get_first_tensor(cpu.kept.context.get());
  ggml_tensor* u = ggml_get_first_tensor(other.context.get());
  while (t != nullptr) {
    HOTSET_CHECK(u != nullptr && t->op == u->op && t->view_offs == u->view_offs);
    for (int d = 0; d < GGML_MAX_DIMS; ++d) {
      if (t->ne[d] != u->ne[d]) {
        HOTSET_CHECK(t->ne[d] % n == 0 && t->ne[d] / n * (n - 1) == u->ne[d]);
        cpu.scaled.push_back({t, true, d, t->ne[d] / n});
      }
      const auto t_stride = static_cast<int64_t>(t->nb[d]);
      if (t->nb[d] != u->nb[d]) {
        HOTSET_CHECK(t_stride % n == 0 && t_stride / n * (n - 1) == static_cast<int64_t>(u->nb[d]));
        cpu.scaled.push_back({t, false, d, t_stride / n});
      }
    }
    t = ggml_get_next_tensor(cpu.kept.context.get(), t);
    u = ggml_get_next_tensor(other.context.get(), u);
  }
  return cpu;
}

Status LookupGraphs::check(const KeptGraph& kept, bool on_cpu) const {
  return check_supported(
      kept.graph,
      [&](const ggml_tensor* node) {
        return on_cpu ? p_.cpu.supports(node) : p_.memory.supports(node);
      },
      on_cpu ? "the CPU backend" : p_.memory.info().name);
}

Status LookupGraphs::visit_largest(const std::function<Status(KeptGraph, bool on_cpu)>& visit) {
  const model::ModelSpec& spec = p_.model.spec();
  const auto offer = [&](Result<KeptGraph> built, bool on_cpu) -> Status {
    HOTSET_TRY(KeptGraph kept, std::move(built));
    HOTSET_RETURN_IF_ERROR(check(kept, on_cpu));
    return visit(std::move(kept), on_cpu);
  };
  for (int64_t layer = 0; layer < spec.n_layer; ++layer) {
    const BankedLayer* banked = p_.banks.layer(layer);
    if (banked == nullptr || banked->resident()) continue;
    for (int32_t n = std::min(p_.n_ubatch, p_.cache_batch);; n /= 2) {
      HOTSET_RETURN_IF_ERROR(offer(build_all_pairs(layer, 0, n), false));
      if (n == 1) break;
    }
    for (const bool one_token : {true, false}) {
      const int64_t most = std::min(max_pairs(one_token), kMaxPairsPerCall);
      for (int64_t n = pair_bucket(most);; n /= 2) {
        HOTSET_RETURN_IF_ERROR(offer(build_listed_pairs(layer, 0, one_token, n), false));
        if (n <= 1) break;
      }
      HOTSET_RETURN_IF_ERROR(offer(build_cpu_pairs(layer, one_token, max_pairs(one_token)), true));
    }
  }
  return offer(build_scatter(pair_bucket(max_pairs(false))), false);
}

Status LookupGraphs::build(int64_t layer, size_t parity) {
  for (const bool one_token : {true, false}) {
    HOTSET_TRY(CpuGraph cpu, build_scaled_cpu_pairs(layer, one_token));
    HOTSET_RETURN_IF_ERROR(p_.cpu_compute.allocate(cpu.kept.graph));
    cpu_pairs_.insert_or_assign(Key{layer, one_token, 0}, std::move(cpu));
  }
  HOTSET_TRY([[maybe_unused]] const KeptGraph* all, all_pairs(layer, parity, 1));
  for (int64_t n = 1; n <= max_pairs(true); ++n) {
    HOTSET_TRY([[maybe_unused]] const KeptGraph* listed, listed_pairs(layer, parity, true, n));
    HOTSET_TRY([[maybe_unused]] const KeptGraph* scattered, scatter(n));
  }
  return {};
}

Result<KeptGraph*> LookupGraphs::keep(std::map<Key, KeptGraph>& graphs, const Key& key,
                                      Result<KeptGraph> graph) {
  HOTSET_TRY(KeptGraph built, std::move(graph));
  HOTSET_RETURN_IF_ERROR(check(built, false));
  HOTSET_RETURN_IF_ERROR(p_.device_compute.allocate(built.graph));
  if (graphs.size() >= kMaxKept) {
    // A graph may go only once the device no longer looks at it.
    HOTSET_RETURN_IF_ERROR(p_.memory.device()->wait_idle());
    graphs.clear();
  }
  ++n_graphs_built_;
  return &graphs.insert_or_assign(key, std::move(built)).first->second;
}

Result<KeptGraph*> LookupGraphs::all_pairs(int64_t layer, size_t parity, int32_t n_tokens) {
  const Key key{layer, n_tokens == 1, n_tokens};
  if (const auto it = all_pairs_.find(key); it != all_pairs_.end()) return &it->second;
  return keep(all_pairs_, key, build_all_pairs(layer, parity, n_tokens));
}

Result<KeptGraph*> LookupGraphs::listed_pairs(int64_t layer, size_t parity, bool one_token,
                                              int64_t n) {
  const Key key{layer, one_token, pair_bucket(n)};
  if (const auto it = listed_pairs_.find(key); it != listed_pairs_.end()) return &it->second;
  return keep(listed_pairs_, key, build_listed_pairs(layer, parity, one_token, key.n));
}

Status LookupGraphs::compute_listed(const PairList& list, const char* name, int64_t layer,
                                    size_t parity, bool one_token, Bytes reads) {
  const auto label_layer = static_cast<int32_t>(layer);
  HOTSET_TRY(KeptGraph* const graph, listed_pairs(layer, parity, one_token, list.n));
  HOTSET_RETURN_IF_ERROR(p_.memory.device()->upload(
      device::QueueId::kCompute, p_.cross.pair_list, 0, list.base,
      static_cast<size_t>(list.size()) * sizeof(int32_t), {"list", label_layer}));
  return p_.memory.device()->compute(graph->graph, reads, {name, label_layer});
}

Result<KeptGraph*> LookupGraphs::scatter(int64_t n) {
  const Key key{0, false, pair_bucket(n)};
  if (const auto it = scatter_.find(key); it != scatter_.end()) return &it->second;
  return keep(scatter_, key, build_scatter(key.n));
}

ggml_cgraph* LookupGraphs::cpu_pairs(int64_t layer, bool one_token, int64_t n) {
  CpuGraph& cpu = cpu_pairs_.at(Key{layer, one_token, 0});
  HOTSET_CHECK(n >= 1 && n <= cpu.max_pairs);
  for (const Scaled& s : cpu.scaled) {
    if (s.is_size) {
      s.tensor->ne[s.dimension] = s.per_pair * n;
    } else {
      s.tensor->nb[s.dimension] = static_cast<size_t>(s.per_pair * n);
    }
  }
  return cpu.kept.graph;
}

}  // namespace hotset::engine
