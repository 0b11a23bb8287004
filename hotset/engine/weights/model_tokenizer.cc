#include "hotset/engine/weights/model_tokenizer.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hotset/base/allocation.h"
#include "hotset/base/log.h"
#include "hotset/base/printable.h"

namespace hotset::engine {
namespace {

constexpr std::string_view kModelKey = "tokenizer.ggml.model";
constexpr std::string_view kPreKey = "tokenizer.ggml.pre";
constexpr std::string_view kBytePairModel = "gpt2";
constexpr std::string_view kNoVocabulary = "no_vocab";  // how a file says that it has none

Status read_id(const model::GgufFile& file, std::string_view key, std::optional<int32_t>& id) {
  // Files write "none" as -1, in 32 bits with or without sign.
  constexpr int64_t none = std::numeric_limits<uint32_t>::max();
  HOTSET_TRY(const std::optional<int64_t> found, file.find_int(key, -1, none));
  if (!found || *found == -1 || *found == none) return {};
  if (*found > std::numeric_limits<int32_t>::max()) {
    return make_error(ErrorCode::kCorrupt, "{}: key '{}': found {}, expected a token id",
                      file.name(), key, *found);
  }
  id = static_cast<int32_t>(*found);
  return {};
}

Status read_types(const model::GgufFile& file, std::vector<int32_t>& types) {
  constexpr std::string_view key = "tokenizer.ggml.token_type";
  HOTSET_TRY(const auto found, file.find_ints(key));
  if (!found) return {};
  types.reserve(found->size());
  for (const int64_t type : *found) {
    if (type < std::numeric_limits<int32_t>::min() || type > std::numeric_limits<int32_t>::max()) {
      return make_error(ErrorCode::kCorrupt, "{}: key '{}': found {} at {}, expected 1 to 6",
                        file.name(), key, type, types.size());
    }
    types.push_back(static_cast<int32_t>(type));
  }
  return {};
}

}  // namespace

Result<text::TokenizerSpec> read_tokenizer_spec(const model::GgufFile& file) {
  text::TokenizerSpec spec;
  HOTSET_TRY(std::optional<std::string> model, file.find_string(kModelKey));
  if (!model || *model == kNoVocabulary) {
    return make_error(ErrorCode::kNotFound,
                      "{}: key '{}': found {}, expected a tokenizer; without one only token ids "
                      "can be used",
                      file.name(), kModelKey, model ? "'no_vocab'" : "none");
  }
  spec.model = *std::move(model);
  HOTSET_TRY(std::optional<std::string> pre, file.find_string(kPreKey));
  spec.pre = std::move(pre).value_or("");
  HOTSET_TRY(auto tokens, file.find_strings("tokenizer.ggml.tokens"));
  spec.tokens = std::move(tokens).value_or(std::vector<std::string>());
  HOTSET_RETURN_IF_ERROR(read_types(file, spec.types));
  HOTSET_TRY(auto scores, file.find_floats("tokenizer.ggml.scores"));
  spec.scores = std::move(scores).value_or(std::vector<float>());
  HOTSET_TRY(auto merges, file.find_strings("tokenizer.ggml.merges"));
  spec.merges = std::move(merges).value_or(std::vector<std::string>());

  HOTSET_RETURN_IF_ERROR(read_id(file, "tokenizer.ggml.bos_token_id", spec.bos));
  HOTSET_RETURN_IF_ERROR(read_id(file, "tokenizer.ggml.eos_token_id", spec.eos));
  HOTSET_RETURN_IF_ERROR(read_id(file, "tokenizer.ggml.eot_token_id", spec.eot));
  HOTSET_RETURN_IF_ERROR(read_id(file, "tokenizer.ggml.eom_token_id", spec.eom));
  HOTSET_RETURN_IF_ERROR(read_id(file, "tokenizer.ggml.unknown_token_id", spec.unk));
  HOTSET_RETURN_IF_ERROR(read_id(file, "tokenizer.ggml.padding_token_id", spec.pad));

  HOTSET_TRY(spec.add_bos, file.find_bool("tokenizer.ggml.add_bos_token"));
  HOTSET_TRY(spec.add_eos, file.find_bool("tokenizer.ggml.add_eos_token"));
  HOTSET_TRY(spec.add_space_prefix, file.find_bool("tokenizer.ggml.add_space_prefix"));
  return spec;
}

namespace {

Result<text::Tokenizer> create_tokenizer(const model::GgufFile& file,
                                         const std::optional<std::string>& pre) {
  HOTSET_TRY(text::TokenizerSpec spec, read_tokenizer_spec(file));
  const bool has_pretokenizer = spec.model == kBytePairModel;
  if (pre) {
    if (!has_pretokenizer) {
      return make_error(ErrorCode::kInvalidArgument,
                        "{}: found the tokenizer '{}', which has no pre-tokenizer; expected none "
                        "to be named, found '{}'",
                        file.name(), printable(spec.model), printable(*pre));
    }
    spec.pre = *pre;
  } else if (has_pretokenizer && spec.pre.empty()) {
    log_warning(
        "{}: key '{}': found none; text is cut in the 'default' way, which may not be what the "
        "model was trained with",
        file.name(), kPreKey);
  }
  Result<text::Tokenizer> tokenizer = text::Tokenizer::create(std::move(spec));
  if (!tokenizer) return add_context(std::move(tokenizer).error(), file.name());
  return tokenizer;
}

}  // namespace

Result<text::Tokenizer> load_tokenizer(const model::GgufFile& file,
                                       const std::optional<std::string>& pre) {
  return catching_refusal("the tokenizer", [&] { return create_tokenizer(file, pre); });
}

Result<text::Tokenizer> model_tokenizer(const ModelDescription& model) {
  HOTSET_TRY(text::Tokenizer tokenizer, load_tokenizer(model.file));
  if (tokenizer.n_tokens() > model.spec.n_vocab) {
    return make_error(ErrorCode::kCorrupt, "{}: found {} tokens, but embeddings for {}",
                      model.file.name(), tokenizer.n_tokens(), model.spec.n_vocab);
  }
  return tokenizer;
}

}  // namespace hotset::engine
