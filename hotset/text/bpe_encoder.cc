#include "hotset/text/bpe_encoder.h"

#include <algorithm>
#include <tuple>

#include "hotset/base/printable.h"
#include "hotset/text/byte_alphabet.h"

namespace hotset::text {
namespace {

constexpr int32_t kNoSymbol = -1;
constexpr int32_t kNoToken = -1;
constexpr int32_t kMergedAway = -2;
constexpr std::string_view kDefaultPretokenizer = "default";
// Longer words hardly ever come twice.
constexpr size_t kMaxRememberedBytes = 64;

// Where the ids of a word that came before lie in the output.
struct Remembered {
  size_t begin;
  size_t n_ids;
};

}  // namespace

Result<std::unique_ptr<BpeEncoder>> BpeEncoder::create(const TokenizerSpec& spec,
                                                       const std::vector<std::string>& pieces) {
  HOTSET_TRY(Pretokenizer pretokenizer,
             Pretokenizer::create(spec.pre.empty() ? kDefaultPretokenizer : spec.pre));
  std::unique_ptr<BpeEncoder> encoder(new BpeEncoder(std::move(pretokenizer)));
  encoder->unk_ = spec.unk;
  encoder->add_tokens(spec, pieces);
  HOTSET_RETURN_IF_ERROR(encoder->add_merges(spec));
  return encoder;
}

void BpeEncoder::add_tokens(const TokenizerSpec& spec, const std::vector<std::string>& pieces) {
  // User-defined tokens last: where one stands for the same text as another token, the other is
  // the one that the merges mean.
  for (const bool user_defined : {false, true}) {
    for (size_t id = 0; id < pieces.size(); ++id) {
      const TokenType type = token_type(spec, id);
      const bool is_text = type == TokenType::kNormal || type == TokenType::kUnused;
      if (pieces[id].empty()) continue;
      if (user_defined ? type == TokenType::kUserDefined
                       : is_text && bytes_from_alphabet(spec.tokens[id])) {
        ids_.try_emplace(pieces[id], static_cast<int32_t>(id));
      }
    }
  }
  for (size_t byte = 0; byte < byte_ids_.size(); ++byte) {
    const char text = static_cast<char>(byte);
    const auto found = ids_.find(std::string_view(&text, 1));
    byte_ids_[byte] = found == ids_.end() ? kNoToken : found->second;
  }
}

Status BpeEncoder::add_merges(const TokenizerSpec& spec) {
  // The texts that merges may name without being of use: a control token is never made of text.
  std::unordered_map<std::string_view, int32_t> reserved;
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    const TokenType type = token_type(spec, id);
    if (type == TokenType::kControl || type == TokenType::kUnknown) {
      reserved.try_emplace(spec.tokens[id], static_cast<int32_t>(id));
    }
  }
  merges_.reserve(spec.merges.size());
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const std::string_view written = spec.merges[rank];
    const size_t space = written.find(' ');
    const std::string_view left = written.substr(0, space);
    const std::string_view right =
        space == std::string_view::npos ? std::string_view() : written.substr(space + 1);
    if (left.empty() || right.empty() || right.contains(' ')) {
      return make_error(ErrorCode::kCorrupt,
                        "tokenizer.ggml.merges[{}]: found '{}', expected two texts with one space "
                        "between them",
                        rank, printable(written));
    }
    std::array<int32_t, 3> ids{};
    bool is_reserved = false;
    const std::string product = std::string(left) + std::string(right);
    const std::array<std::string_view, 3> names = {left, right, product};
    for (size_t i = 0; i < names.size(); ++i) {
      const std::optional<std::string> bytes = bytes_from_alphabet(names[i]);
      const auto found = bytes ? ids_.find(*bytes) : ids_.end();
      if (found != ids_.end()) {
        ids[i] = found->second;
      } else if (reserved.contains(names[i])) {
        is_reserved = true;
      } else {
        return make_error(ErrorCode::kCorrupt,
                          "tokenizer.ggml.merges[{}]: found '{}', but '{}' is not one of the {} "
                          "tokens",
                          rank, printable(written), printable(names[i]), spec.tokens.size());
      }
    }
    if (!is_reserved) merges_.push_back({ids[0], ids[1], static_cast<int32_t>(rank), ids[2]});
  }
  // A pair that is listed twice merges by its first place.
  const auto pair_of = [](const Merge& merge) { return std::tie(merge.left, merge.right); };
  std::ranges::stable_sort(merges_, {}, pair_of);
  const auto repeated = std::ranges::unique(merges_, {}, pair_of);
  merges_.erase(repeated.begin(), repeated.end());
  first_merge_.assign(spec.tokens.size() + 1, 0);
  for (const Merge& merge : merges_) ++first_merge_[static_cast<size_t>(merge.left) + 1];
  for (size_t id = 1; id < first_merge_.size(); ++id) first_merge_[id] += first_merge_[id - 1];
  return {};
}

const BpeEncoder::Merge* BpeEncoder::find_merge(int32_t left, int32_t right) const {
  if (left < 0 || right < 0) return nullptr;
  const auto begin = merges_.begin() + first_merge_[left];
  const auto end = merges_.begin() + first_merge_[static_cast<size_t>(left) + 1];
  const auto found = std::ranges::lower_bound(begin, end, right, {}, &Merge::right);
  return found != end && found->right == right ? &*found : nullptr;
}

Status BpeEncoder::encode(std::string_view text, std::vector<int32_t>& ids) const {
  HOTSET_CHECK(text.size() <= kMaxTextBytes);
  std::vector<std::string_view> words;
  HOTSET_RETURN_IF_ERROR(pretokenizer_.split(text, words));
  Workspace workspace;
  std::unordered_map<std::string_view, Remembered> remembered;
  for (const std::string_view word : words) {
    if (pretokenizer_.traits().whole_words_first) {
      if (const auto found = ids_.find(word); found != ids_.end()) {
        ids.push_back(found->second);
        continue;
      }
    }
    const bool remember = word.size() > 1 && word.size() <= kMaxRememberedBytes;
    if (remember) {
      const auto [at, is_new] = remembered.try_emplace(word, Remembered{ids.size(), 0});
      if (!is_new) {
        for (size_t i = 0; i < at->second.n_ids; ++i) ids.push_back(ids[at->second.begin + i]);
        continue;
      }
      HOTSET_RETURN_IF_ERROR(encode_word(word, workspace, ids));
      at->second.n_ids = ids.size() - at->second.begin;
      continue;
    }
    HOTSET_RETURN_IF_ERROR(encode_word(word, workspace, ids));
  }
  return {};
}

void BpeEncoder::add_candidate(int32_t left, Workspace& workspace) const {
  if (left < 0) return;
  const Symbol& symbol = workspace.symbols[left];
  if (symbol.next < 0) return;
  const int32_t right_id = workspace.symbols[symbol.next].id;
  if (const Merge* merge = find_merge(symbol.id, right_id)) {
    workspace.heap.push_back({merge->rank, left, symbol.id, right_id, merge->product});
  }
}

Status BpeEncoder::encode_word(std::string_view word, Workspace& workspace,
                               std::vector<int32_t>& ids) const {
  std::vector<Symbol>& symbols = workspace.symbols;
  std::vector<PossibleMerge>& heap = workspace.heap;
  // A heap with this order has the first merge of the list at the top, the leftmost of equals.
  const auto later = [](const PossibleMerge& a, const PossibleMerge& b) {
    return std::tie(a.rank, a.left) > std::tie(b.rank, b.left);
  };
  const auto n_symbols = static_cast<int32_t>(word.size());
  symbols.clear();
  for (int32_t i = 0; i < n_symbols; ++i) {
    const auto byte = static_cast<uint8_t>(word[i]);
    symbols.push_back({byte_ids_[byte], i - 1, i + 1 < n_symbols ? i + 1 : kNoSymbol});
  }
  heap.clear();
  for (int32_t i = 0; i + 1 < n_symbols; ++i) add_candidate(i, workspace);
  std::ranges::make_heap(heap, later);
  while (!heap.empty()) {
    std::ranges::pop_heap(heap, later);
    const PossibleMerge candidate = heap.back();
    heap.pop_back();
    Symbol& left = symbols[candidate.left];
    if (left.id != candidate.left_id || left.next < 0) continue;
    Symbol& right = symbols[left.next];
    if (right.id != candidate.right_id) continue;
    left.id = candidate.product;
    left.next = right.next;
    right.id = kMergedAway;
    if (left.next >= 0) symbols[left.next].previous = candidate.left;
    for (const int32_t changed : {left.previous, candidate.left}) {
      const size_t n_before = heap.size();
      add_candidate(changed, workspace);
      if (heap.size() > n_before) std::ranges::push_heap(heap, later);
    }
  }
  for (int32_t i = 0; i >= 0; i = symbols[i].next) {
    const int32_t id = symbols[i].id;
    if (id == kNoToken && !unk_) {
      return make_error(ErrorCode::kUnsupported,
                        "the byte 0x{:02X} has no token, and the vocabulary no unknown token",
                        static_cast<uint8_t>(word[i]));
    }
    ids.push_back(id == kNoToken ? *unk_ : id);
  }
  return {};
}

}  // namespace hotset::text
