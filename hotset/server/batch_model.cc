#include "hotset/server/batch_model.h"

#include <algorithm>
#include <utility>

namespace hotset::server {

void ExpertFigures::add(const ExpertFigures& before, const ExpertFigures& after, double share) {
  selected += share * (after.selected - before.selected);
  hits += share * (after.hits - before.hits);
  uploads += share * (after.uploads - before.uploads);
  cpu += share * (after.cpu - before.cpu);
  streamed += share * (after.streamed - before.streamed);
}

EngineModel::EngineModel(engine::Engine& engine, Decode decode)
    : engine_(engine), decode_(std::move(decode)) {
  if (!decode_) {
    decode_ = [this](std::span<const engine::BatchToken> batch) {
      return engine_.decode_each(batch);
    };
  }
}

int32_t EngineModel::n_free() const {
  const engine::KvCells& cells = engine_.kv().cells();
  return std::min(cells.n_cells(), engine_.n_ctx()) - cells.n_used();
}

void EngineModel::forget(engine::SequenceId sequence, int32_t begin, int32_t end) {
  engine_.forget(sequence, begin, end);
}

void EngineModel::share_prefix(engine::SequenceId from, engine::SequenceId to, int32_t end) {
  engine_.share_prefix(from, to, end);
}

Status EngineModel::restore(engine::SequenceId sequence, std::span<const uint8_t> state) {
  HOTSET_TRY([[maybe_unused]] const auto tokens, engine_.restore_sequence(sequence, state));
  return {};
}

ExpertFigures EngineModel::expert_figures() const {
  if (engine_.cache() == nullptr) return {};
  const auto counts = engine_.cache()->core().total_counts();
  return {.selected = static_cast<double>(counts.selected),
          .hits = static_cast<double>(counts.hits),
          .uploads = static_cast<double>(counts.uploads),
          .cpu = static_cast<double>(counts.cpu),
          .streamed = static_cast<double>(counts.streamed)};
}

}  // namespace hotset::server
