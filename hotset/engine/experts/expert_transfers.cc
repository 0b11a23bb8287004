#include "hotset/engine/experts/expert_transfers.h"

#include <algorithm>
#include <utility>

namespace hotset::engine {

using device::QueueId;

Result<std::unique_ptr<ExpertTransfers>> ExpertTransfers::create(const LoadedModel& model,
                                                                 device::DeviceMemory& memory,
                                                                 const cache::ExpertCache& cache) {
  std::unique_ptr<ExpertTransfers> transfers(new ExpertTransfers(memory));
  HOTSET_TRY(transfers->banks_, ExpertBanks::create(model, memory, cache));
  if (device::Device* device = memory.device()) {
    HOTSET_TRY(transfers->uploaded_, device->new_event());
    for (device::Event& event : transfers->ahead_events_) {
      HOTSET_TRY(event, device->new_event());
    }
  }
  // A lookup queues at most one fill per expert.
  transfers->fills_.reserve(64);
  transfers->free_events_.reserve(64);
  transfers->used_events_.reserve(64);
  return transfers;
}

Result<device::Event> ExpertTransfers::free_event() {
  if (free_events_.empty()) return device_->new_event();
  const device::Event event = free_events_.back();
  free_events_.pop_back();
  return event;
}

Status ExpertTransfers::fills_arrive(std::span<const lanes::PendingFill> arrived) {
  for (const lanes::PendingFill& fill : arrived) {
    const auto it = std::ranges::find_if(fills_, [&](const QueuedFill& queued) {
      return queued.group == fill.group && queued.slot == fill.slot;
    });
    HOTSET_CHECK(it != fills_.end());
    HOTSET_RETURN_IF_ERROR(device_->queue_wait(QueueId::kCompute, it->copied));
    banks_->map_changed(it->layer);
    waited_point_ = std::max(waited_point_, it->point);
    used_events_.push_back(it->copied);
    fills_.erase(it);
  }
  return {};
}

Status ExpertTransfers::wait_for_ahead() {
  HOTSET_RETURN_IF_ERROR(device_->queue_wait(QueueId::kCompute, ahead_.copied));
  waited_point_ = std::max(waited_point_, ahead_.point);
  ahead_.is_waited = true;
  return {};
}

Status ExpertTransfers::drop_unasked() { return ahead_.is_waited ? Status() : wait_for_ahead(); }

Status ExpertTransfers::copy_ahead(int64_t layer, std::span<const int32_t> experts) {
  ahead_.layer = -1;
  if (experts.empty()) return {};
  // The chunk of the lookup before that was in this half may still be computed.
  for (size_t i = chunks_.size(); i-- > 0;) {
    if (chunks_[i].half != 0) continue;
    HOTSET_RETURN_IF_ERROR(device_->queue_wait(QueueId::kTransfer, chunks_[i].computed));
    break;
  }
  ahead_.experts.assign(experts.begin(), experts.end());
  const int32_t first = banks_->layer(layer)->first_stage;
  HOTSET_RETURN_IF_ERROR(copy_runs(layer, experts.size(), "prefetch", [&](size_t i) {
    return cache::Upload{experts[i], first + static_cast<int32_t>(i)};
  }));
  std::swap(ahead_events_[0], ahead_events_[1]);
  ahead_.copied = ahead_events_[0];
  ahead_.layer = layer;
  ahead_.point = banks_->point();
  ahead_.is_waited = false;
  return device_->record(ahead_.copied, QueueId::kTransfer);
}

void ExpertTransfers::host_has_waited() {
  banks_->done(waited_point_);
  free_events_.insert(free_events_.end(), used_events_.begin(), used_events_.end());
  used_events_.clear();
}

Result<Bytes> ExpertTransfers::begin(const lanes::PlannedLookup& plan) {
  chunks_ = {};
  if (!plan.uploads.empty()) banks_->map_changed(plan.layer);
  for (const cache::Eviction& eviction : plan.evictions) banks_->map_changed(eviction.key.layer);
  const size_t n_ahead = ahead_.layer == plan.layer ? ahead_.experts.size() : 0;
  if (plan.is_streamed) HOTSET_RETURN_IF_ERROR(form_chunks(plan));
  size_t n_asked = 0;
  for (const StreamChunk& chunk : chunks_) {
    if (chunk.is_prefetched) n_asked += chunk.experts.size();
  }
  return banks_->expert_bytes(plan.layer) * static_cast<int64_t>(n_ahead - n_asked);
}

Result<StreamChunk*> ExpertTransfers::add_chunk(int32_t half) {
  const size_t n = chunks_.size();
  if (n == chunk_store_.size()) {
    StreamChunk& made = chunk_store_.emplace_back();
    HOTSET_TRY(made.copied, device_->new_event());
    HOTSET_TRY(made.computed, device_->new_event());
  }
  chunks_ = std::span(chunk_store_).first(n + 1);
  StreamChunk& chunk = chunks_.back();
  chunk.experts.clear();
  chunk.slots.clear();
  chunk.after = -1;
  chunk.half = half;
  chunk.is_prefetched = false;
  return &chunk;
}

Status ExpertTransfers::take_ahead(const BankedLayer& banked, int64_t layer) {
  if (ahead_.layer != layer) return {};
  StreamChunk* chunk = nullptr;
  for (size_t i = 0; i < ahead_.experts.size(); ++i) {
    const int32_t expert = ahead_.experts[i];
    const auto at = std::ranges::lower_bound(staged_, expert);
    if (at == staged_.end() || *at != expert) continue;
    staged_.erase(at);
    if (chunk == nullptr) {
      HOTSET_TRY(chunk, add_chunk(0));
      chunk->is_prefetched = true;
    }
    chunk->experts.push_back(expert);
    chunk->slots.push_back(banked.first_stage + static_cast<int32_t>(i));
  }
  return {};
}

Status ExpertTransfers::form_chunks(const lanes::PlannedLookup& plan) {
  const BankedLayer& banked = *banks_->layer(plan.layer);
  const auto n_half = static_cast<size_t>(banked.n_stage / 2);
  for (size_t i = 0; i < plan.uploads.size(); ++i) {
    if (i % n_half == 0) {
      HOTSET_TRY([[maybe_unused]] const StreamChunk* added, add_chunk(StreamChunk::kOwnSlots));
    }
    chunks_.back().experts.push_back(plan.uploads[i].expert);
    chunks_.back().slots.push_back(plan.uploads[i].slot);
  }
  // In the order of the file, so that neighbours are one copy.
  staged_.assign(plan.streamed.begin(), plan.streamed.end());
  const size_t n_before = chunks_.size();
  HOTSET_RETURN_IF_ERROR(take_ahead(banked, plan.layer));
  for (size_t i = 0; i < staged_.size(); ++i) {
    if (i % n_half == 0) {
      const size_t n_staged = chunks_.size() - n_before;
      HOTSET_TRY(StreamChunk* const chunk, add_chunk(static_cast<int32_t>(n_staged % 2)));
      if (n_staged >= 2) chunk->after = static_cast<int32_t>(chunks_.size()) - 3;
    }
    StreamChunk& chunk = chunks_.back();
    chunk.experts.push_back(staged_[i]);
    chunk.slots.push_back(
        banked.first_stage +
        static_cast<int32_t>(static_cast<size_t>(chunk.half) * n_half + i % n_half));
  }
  return {};
}

template <typename At>
Status ExpertTransfers::copy_runs(int64_t layer, size_t n, const char* label, At at) {
  for (size_t begin = 0; begin < n;) {
    const cache::Upload first = at(begin);
    int32_t n_run = 1;
    while (begin + static_cast<size_t>(n_run) < n) {
      const cache::Upload next = at(begin + static_cast<size_t>(n_run));
      if (next.expert != first.expert + n_run || next.slot != first.slot + n_run) break;
      ++n_run;
    }
    HOTSET_RETURN_IF_ERROR(banks_->copy(layer, first.expert, first.slot, n_run, label));
    begin += static_cast<size_t>(n_run);
  }
  return {};
}

Status ExpertTransfers::queue_uploads(int64_t layer, std::span<const cache::Upload> uploads) {
  HOTSET_RETURN_IF_ERROR(
      copy_runs(layer, uploads.size(), "upload", [&](size_t i) { return uploads[i]; }));
  HOTSET_RETURN_IF_ERROR(device_->record(uploaded_, QueueId::kTransfer));
  uploaded_point_ = banks_->point();
  return {};
}

Status ExpertTransfers::uploads_arrive() {
  HOTSET_RETURN_IF_ERROR(device_->queue_wait(QueueId::kCompute, uploaded_));
  waited_point_ = std::max(waited_point_, uploaded_point_);
  return {};
}

Status ExpertTransfers::queue_chunk(int64_t layer, size_t index) {
  StreamChunk& chunk = chunks_[index];
  if (chunk.is_prefetched) return {};
  if (chunk.after >= 0) {
    HOTSET_RETURN_IF_ERROR(device_->queue_wait(QueueId::kTransfer, chunks_[chunk.after].computed));
  }
  HOTSET_RETURN_IF_ERROR(copy_runs(layer, chunk.experts.size(), "stream", [&](size_t i) {
    return cache::Upload{chunk.experts[i], chunk.slots[i]};
  }));
  HOTSET_RETURN_IF_ERROR(device_->record(chunk.copied, QueueId::kTransfer));
  waited_point_ = std::max(waited_point_, banks_->point());
  return {};
}

Status ExpertTransfers::chunk_arrives(size_t index) {
  const StreamChunk& chunk = chunks_[index];
  return chunk.is_prefetched ? wait_for_ahead()
                             : device_->queue_wait(QueueId::kCompute, chunk.copied);
}

Status ExpertTransfers::chunk_is_computed(size_t index) {
  return device_->record(chunks_[index].computed, QueueId::kCompute);
}

Status ExpertTransfers::queue_fills(std::span<const cache::Fill> fills) {
  for (const cache::Fill& fill : fills) {
    HOTSET_RETURN_IF_ERROR(banks_->copy(fill.key.layer, fill.key.expert, fill.slot, 1, "fill"));
    HOTSET_TRY(const device::Event copied, free_event());
    HOTSET_RETURN_IF_ERROR(device_->record(copied, QueueId::kTransfer));
    fills_.push_back({fill.group, fill.slot, fill.key.layer, copied, banks_->point()});
  }
  return {};
}

}  // namespace hotset::engine
