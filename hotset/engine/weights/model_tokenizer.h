// The tokenizer part of a model file's metadata.
// Thread-safe.
#ifndef HOTSET_ENGINE_WEIGHTS_MODEL_TOKENIZER_H_
#define HOTSET_ENGINE_WEIGHTS_MODEL_TOKENIZER_H_

#include <optional>
#include <string>

#include "hotset/base/error.h"
#include "hotset/engine/weights/loaded_model.h"
#include "hotset/model/gguf_file.h"
#include "hotset/text/tokenizer.h"
#include "hotset/text/tokenizer_spec.h"

namespace hotset::engine {

// Reads the keys `tokenizer.ggml.*`; the file needs no tensors. What the values mean together is
// checked by text::Tokenizer::create().
// Errors: kNotFound: the file has no tokenizer; kCorrupt: a value of the wrong type or out of the
// range of its field. The message names file, key, found and expected.
Result<text::TokenizerSpec> read_tokenizer_spec(const model::GgufFile& file);

// The tokenizer of the file, with another pre-tokenizer than it names if `pre` is given. Warns
// where the file names none and one is needed. Errors: those of read_tokenizer_spec() and of
// text::Tokenizer::create(), with the file's name; kInvalidArgument: `pre` for a tokenizer that has
// none.
Result<text::Tokenizer> load_tokenizer(const model::GgufFile& file,
                                       const std::optional<std::string>& pre = std::nullopt);

// The tokenizer of a model, as it is. Needs no weights. Errors: those of load_tokenizer();
// kCorrupt: more tokens than the model has embeddings for. They name the file.
Result<text::Tokenizer> model_tokenizer(const ModelDescription& model);

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_WEIGHTS_MODEL_TOKENIZER_H_
