// The tokenizer part of a model file's metadata.
// Thread-safe: a pure function.
#ifndef HOTSET_ENGINE_TOKENIZER_SPEC_H_
#define HOTSET_ENGINE_TOKENIZER_SPEC_H_

#include "hotset/base/error.h"
#include "hotset/model/gguf_file.h"
#include "hotset/text/tokenizer_spec.h"

namespace hotset::engine {

// Reads the keys `tokenizer.ggml.*`; the file needs no tensors. What the values mean together is
// checked by text::Tokenizer::create().
// Errors: kNotFound: the file has no tokenizer; kCorrupt: a value of the wrong type or out of the
// range of its field. The message names file, key, found and expected.
Result<text::TokenizerSpec> read_tokenizer_spec(const model::GgufFile& file);

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_TOKENIZER_SPEC_H_
