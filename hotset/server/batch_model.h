// What the scheduler drives: something that computes tokens of several sequences in one batch and
// remembers them. EngineModel is the real one; tests bring their own.
// Thread-compatible: the scheduler's thread alone calls it.
#ifndef HOTSET_SERVER_BATCH_MODEL_H_
#define HOTSET_SERVER_BATCH_MODEL_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/base/units.h"
#include "hotset/engine/run/engine.h"

namespace hotset::server {

// Distinct experts of lookups, by how they were served, since the start or of one request.
struct ExpertFigures {
  double selected = 0;
  double hits = 0;
  double uploads = 0;
  double cpu = 0;
  double streamed = 0;  // of prefills

  double hit_rate() const { return selected > 0 ? hits / selected : 0; }
  // Adds `share` times what happened between two states.
  void add(const ExpertFigures& before, const ExpertFigures& after, double share);
};

// Tokens of a prompt that are computed together where the logits behind each are wanted: more of
// them need more memory for logits, fewer take longer.
inline constexpr int32_t kPromptRows = 32;

class BatchModel {
 public:
  virtual ~BatchModel() = default;

  virtual int32_t n_ctx() const = 0;  // positions over all sequences
  // The most positions of one sequence.
  virtual int32_t n_ctx_sequence() const { return n_ctx(); }
  virtual int32_t n_vocab() const = 0;   // logits of a row
  virtual int32_t n_ubatch() const = 0;  // most tokens of a decode() that is one step
  // Positions that can still be taken.
  virtual int32_t n_free() const = 0;
  // As engine::Engine::decode_each(): rows of n_vocab logits for the tokens that want them, and the
  // sequences that have failed and are forgotten; after an error the tokens of this call are.
  virtual Result<engine::DecodeResult> decode(std::span<const engine::BatchToken> batch) = 0;
  // As engine::Engine: more may be forgotten, and nothing shared; next_position() tells.
  virtual void forget(engine::SequenceId sequence, int32_t begin, int32_t end) = 0;
  virtual void share_prefix(engine::SequenceId from, engine::SequenceId to, int32_t end) = 0;
  virtual int32_t next_position(engine::SequenceId sequence) const = 0;
  // What save() of a sequence gives, and its state as bytes that restore() gives to another one.
  virtual Bytes saved_bytes(engine::SequenceId sequence) const = 0;
  virtual Result<std::vector<uint8_t>> save(engine::SequenceId sequence) const = 0;
  virtual Status restore(engine::SequenceId sequence, std::span<const uint8_t> state) = 0;
  virtual ExpertFigures expert_figures() const { return {}; }
};

// Drives an engine. `decode` stands in for Engine::decode_each where the caller records or watches
// what is computed; empty: the engine's own.
class EngineModel final : public BatchModel {
 public:
  using Decode = std::function<Result<engine::DecodeResult>(std::span<const engine::BatchToken>)>;

  // Requires: the engine outlives this, and nobody else drives it meanwhile.
  explicit EngineModel(engine::Engine& engine, Decode decode = {});

  int32_t n_ctx() const override { return engine_.n_ctx(); }
  int32_t n_ctx_sequence() const override { return engine_.n_ctx_sequence(); }
  int32_t n_vocab() const override { return static_cast<int32_t>(engine_.spec().n_vocab); }
  int32_t n_ubatch() const override { return engine_.n_ubatch(); }
  int32_t n_free() const override;
  Result<engine::DecodeResult> decode(std::span<const engine::BatchToken> batch) override {
    return decode_(batch);
  }
  void forget(engine::SequenceId sequence, int32_t begin, int32_t end) override;
  void share_prefix(engine::SequenceId from, engine::SequenceId to, int32_t end) override;
  int32_t next_position(engine::SequenceId sequence) const override {
    return engine_.next_position(sequence);
  }
  Bytes saved_bytes(engine::SequenceId sequence) const override {
    return engine_.saved_bytes(sequence, 0);
  }
  Result<std::vector<uint8_t>> save(engine::SequenceId sequence) const override {
    return engine_.save_sequence(sequence);
  }
  Status restore(engine::SequenceId sequence, std::span<const uint8_t> state) override;
  ExpertFigures expert_figures() const override;

 private:
  engine::Engine& engine_;
  Decode decode_;
};

}  // namespace hotset::server

#endif  // HOTSET_SERVER_BATCH_MODEL_H_
