#include "hotset/engine/experts/lookup_pairs.h"

namespace hotset::engine {

LookupPairs::LookupPairs(size_t n_expert, size_t n_pairs)
    : lane_of_(n_expert), slot_of_(n_expert), chunk_of_(n_expert) {
  for (auto* pairs : {&hits_, &uploads_, &device_, &cpu_}) pairs->reserve(n_pairs);
}

void LookupPairs::list(const lanes::PlannedLookup& plan, std::span<const StreamChunk> chunks,
                       std::span<const int32_t> slot_map, std::span<const int32_t> ids) {
  const auto place = [&](int32_t expert, Lane lane, int32_t slot) {
    lane_of_[expert] = lane;
    slot_of_[expert] = slot;
  };
  const auto resident = [&](int32_t expert) { return slot_map[expert]; };
  for (const cache::Hit& hit : plan.hits) place(hit.expert, Lane::kHit, resident(hit.expert));
  for (const cache::Upload& upload : plan.uploads) {
    place(upload.expert, Lane::kUpload, resident(upload.expert));
  }
  for (const int32_t expert : plan.cpu) place(expert, Lane::kCpu, policy::kNoSlot);
  if (chunks_.size() < chunks.size()) chunks_.resize(chunks.size());
  for (size_t c = 0; c < chunks.size(); ++c) {
    chunks_[c].clear();
    for (size_t i = 0; i < chunks[c].experts.size(); ++i) {
      place(chunks[c].experts[i], Lane::kChunk, chunks[c].slots[i]);
      chunk_of_[chunks[c].experts[i]] = static_cast<int32_t>(c);
    }
  }
  for (auto* pairs : {&hits_, &uploads_, &device_, &cpu_}) pairs->clear();
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto expert = static_cast<size_t>(ids[i]);
    const auto pair = static_cast<int32_t>(i);
    switch (lane_of_[expert]) {
      case Lane::kHit:
        hits_.push_back(pair);
        device_.push_back(pair);
        break;
      case Lane::kUpload:
        uploads_.push_back(pair);
        device_.push_back(pair);
        break;
      case Lane::kCpu:
        cpu_.push_back(pair);
        break;
      case Lane::kChunk:
        chunks_[chunk_of_[expert]].push_back(pair);
        break;
    }
  }
}

}  // namespace hotset::engine
