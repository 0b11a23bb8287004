#include "hotset/engine/run/routing_recorder.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "hotset/cache/group.h"
#include "hotset/engine/arch/architecture.h"
#include "hotset/engine/experts/expert_groups.h"
#include "hotset/engine/weights/weights.h"

namespace hotset::engine {
namespace {

// The oldest lookups in memory are dropped in pieces of this size.
constexpr size_t kChunkBytes = size_t{1} << 20;

trace::TraceGroup trace_group(const cache::GroupSpec& spec) {
  trace::TraceGroup group{.device = spec.device,
                          .n_expert = static_cast<uint32_t>(spec.n_expert),
                          .split = spec.split,
                          .split_sum = spec.split_sum,
                          .group_host_bytes = spec.group_host_bytes,
                          .device_host_bytes = spec.device_host_bytes,
                          .alignment_bytes = spec.alignment,
                          .tensor_expert_bytes = spec.expert_bytes};
  for (const int32_t layer : spec.layers) group.layers.push_back(static_cast<uint32_t>(layer));
  return group;
}

// As one device would cache the layers that have experts.
Result<std::vector<cache::GroupSpec>> groups_by_layout(const Engine& engine) {
  HOTSET_TRY(const std::vector<cache::MoeLayer> layers, moe_layers(engine.model().description()));
  const device::Device* device = engine.device();
  const ggml_backend_buffer_type_t buffers =
      device != nullptr ? device->buffer_type() : ggml_backend_cpu_buffer_type();
  const cache::DeviceShare share{
      .alignment = static_cast<int64_t>(ggml_backend_buft_get_alignment(buffers))};
  const auto k = static_cast<int32_t>(engine.spec().router.n_expert_used);
  if (layers.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: no layer has experts, so there is no routing to record",
                      engine.model().file().name());
  }
  return cache::form_groups(layers, {&share, 1}, Bytes{}, k);
}

}  // namespace

Result<trace::TraceHeader> trace_header(const Engine& engine) {
  trace::TraceHeader header{
      .n_layer = static_cast<uint32_t>(engine.spec().n_layer),
      .experts_per_token = static_cast<uint32_t>(engine.spec().router.n_expert_used)};
  if (engine.cache() != nullptr) {
    const cache::ExpertCache& core = engine.cache()->core();
    for (int32_t g = 0; g < core.n_groups(); ++g) {
      header.groups.push_back(trace_group(core.spec(g)));
    }
    return header;
  }
  HOTSET_TRY(const std::vector<cache::GroupSpec> groups, groups_by_layout(engine));
  for (const cache::GroupSpec& group : groups) header.groups.push_back(trace_group(group));
  return header;
}

std::vector<int32_t> served_layers(const Engine& engine) {
  std::vector<int32_t> layers;
  for (int32_t layer = 0; engine.cache() != nullptr && layer < engine.spec().n_layer; ++layer) {
    if (engine.cache()->serves(layer)) layers.push_back(layer);
  }
  return layers;
}

// The header and the lookups in memory, as the bytes of a file.
class RoutingRecorder::KeptSource final : public trace::ByteSource {
 public:
  explicit KeptSource(const RoutingRecorder& recorder) : recorder_(recorder) {
    trace::encode_header(recorder.header_, header_);
    rest_ = header_;
  }

  Result<size_t> read(std::span<std::byte> out) override {
    while (rest_.empty() && next_chunk_ < recorder_.chunks_.size()) {
      rest_ = recorder_.chunks_[next_chunk_++].bytes;
    }
    const size_t n = std::min(out.size(), rest_.size());
    if (n > 0) std::memcpy(out.data(), rest_.data(), n);
    rest_ = rest_.subspan(n);
    return n;
  }

 private:
  const RoutingRecorder& recorder_;
  std::vector<std::byte> header_;
  std::span<const std::byte> rest_;
  size_t next_chunk_ = 0;
};

RoutingObserver RoutingRecorder::observer() {
  return [this](int64_t layer, std::span<const int32_t> ids, int64_t n_tokens) {
    record(layer, ids, n_tokens);
  };
}

Status RoutingRecorder::begin(trace::TraceHeader header, std::span<const int32_t> kept_layers) {
  HOTSET_CHECK(group_by_layer_.empty());
  HOTSET_RETURN_IF_ERROR(validate(header));
  if (!options_.path.empty()) {
    HOTSET_TRY(writer_, trace::TraceWriter::open(options_.path, header));
  }
  header_ = std::move(header);
  is_kept_.resize(header_.n_layer);
  for (const int32_t layer : kept_layers) is_kept_[layer] = 1;
  group_by_layer_ = header_.group_by_layer();
  return {};
}

void RoutingRecorder::record(int64_t layer, std::span<const int32_t> ids, int64_t n_tokens) {
  const auto at = static_cast<size_t>(layer);
  if (at >= group_by_layer_.size() || group_by_layer_[at] < 0 || n_tokens < 1) return;
  const trace::TraceLookup lookup{
      .layer = static_cast<int32_t>(layer),
      .experts_per_token = static_cast<int32_t>(std::ssize(ids) / n_tokens),
      .ids = ids};
  if (writer_ && status_) status_ = writer_->append(lookup);
  if (is_kept_[at] != 0 && options_.most_kept > Bytes{}) keep(lookup);
}

void RoutingRecorder::keep(const trace::TraceLookup& lookup) {
  if (chunks_.empty() || chunks_.back().bytes.size() >= kChunkBytes) {
    const auto n_bytes = static_cast<int64_t>((chunks_.size() + 1) * kChunkBytes);
    if (n_bytes > options_.most_kept.count && !chunks_.empty()) {
      n_kept_ -= chunks_.front().n_lookups;
      chunks_.pop_front();
    }
    chunks_.emplace_back();
  }
  trace::encode_lookup(lookup, chunks_.back().bytes);
  ++chunks_.back().n_lookups;
  ++n_kept_;
  ++n_recorded_;
}

Status RoutingRecorder::end() {
  if (!writer_) return status_;
  const Status closed = std::exchange(writer_, std::nullopt)->close();
  return status_ ? closed : status_;
}

Result<trace::TraceReader> RoutingRecorder::kept() const {
  HOTSET_CHECK(!group_by_layer_.empty());
  return trace::TraceReader::from(std::make_unique<KeptSource>(*this), "recorded routing");
}

std::vector<std::byte> RoutingRecorder::copy_kept(Bytes most) const {
  HOTSET_CHECK(!group_by_layer_.empty());
  std::vector<std::byte> bytes;
  trace::encode_header(header_, bytes);
  const auto n_chunks = static_cast<size_t>(most.count) / kChunkBytes + 1;
  const size_t first = chunks_.size() - std::min(chunks_.size(), n_chunks);
  for (size_t i = first; i < chunks_.size(); ++i) {
    bytes.insert(bytes.end(), chunks_[i].bytes.begin(), chunks_[i].bytes.end());
  }
  return bytes;
}

}  // namespace hotset::engine
