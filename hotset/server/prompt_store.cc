#include "hotset/server/prompt_store.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace hotset::server {
namespace {

size_t common(std::span<const int32_t> a, std::span<const int32_t> b) {
  return static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

}  // namespace

void PromptStore::drop(std::list<SavedPrompt>::iterator at) {
  used_ -= at->n_bytes();
  prompts_.erase(at);
}

bool PromptStore::covers(std::span<const int32_t> tokens) {
  for (auto at = prompts_.begin(); at != prompts_.end(); ++at) {
    if (common(at->tokens, tokens) < tokens.size()) continue;
    prompts_.splice(prompts_.begin(), prompts_, at);
    return true;
  }
  return false;
}

void PromptStore::add(SavedPrompt prompt) {
  if (prompt.n_bytes() > capacity_ || covers(prompt.tokens)) return;
  for (auto at = prompts_.begin(); at != prompts_.end();) {
    const auto next = std::next(at);
    if (common(at->tokens, prompt.tokens) == at->tokens.size()) drop(at);
    at = next;
  }
  while (used_ + prompt.n_bytes() > capacity_) drop(std::prev(prompts_.end()));
  used_ += prompt.n_bytes();
  prompts_.push_front(std::move(prompt));
}

size_t PromptStore::best_prefix(std::span<const int32_t> tokens) const {
  size_t best = 0;
  for (const SavedPrompt& prompt : prompts_) best = std::max(best, common(prompt.tokens, tokens));
  return best;
}

std::optional<SavedPrompt> PromptStore::take(std::span<const int32_t> tokens) {
  const auto at = std::ranges::max_element(
      prompts_, {}, [&](const SavedPrompt& prompt) { return common(prompt.tokens, tokens); });
  if (at == prompts_.end() || common(at->tokens, tokens) == 0) return std::nullopt;
  used_ -= at->n_bytes();
  SavedPrompt prompt = std::move(*at);
  prompts_.erase(at);
  return prompt;
}

}  // namespace hotset::server
