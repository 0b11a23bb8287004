// Saved states of sequences in host memory, found again by how their tokens begin. Bounded; the
// least recently used ones go.
// Thread-compatible.
#ifndef HOTSET_SERVER_PROMPT_STORE_H_
#define HOTSET_SERVER_PROMPT_STORE_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <vector>

#include "hotset/base/units.h"

namespace hotset::server {

struct SavedPrompt {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> state;

  Bytes n_bytes() const {
    return {static_cast<int64_t>(tokens.size() * sizeof(int32_t) + state.size())};
  }
};

class PromptStore {
 public:
  // 0: nothing is kept.
  explicit PromptStore(Bytes capacity) : capacity_(capacity) {}

  Bytes capacity() const { return capacity_; }
  Bytes used() const { return used_; }
  size_t n_prompts() const { return prompts_.size(); }

  // Whether one begins with all of `tokens`; it then counts as used.
  bool covers(std::span<const int32_t> tokens);
  // Keeps it, instead of those that are its beginnings. One that is larger than the capacity, or
  // that another one begins with, is dropped.
  void add(SavedPrompt prompt);
  // How many tokens at the front of `tokens` the best one has.
  size_t best_prefix(std::span<const int32_t> tokens) const;
  // Takes out the best one. Nothing if none has a token in common.
  std::optional<SavedPrompt> take(std::span<const int32_t> tokens);

 private:
  void drop(std::list<SavedPrompt>::iterator at);

  Bytes capacity_;
  Bytes used_;
  std::list<SavedPrompt> prompts_;  // used last in front
};

}  // namespace hotset::server

#endif  // HOTSET_SERVER_PROMPT_STORE_H_
