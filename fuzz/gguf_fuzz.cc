// The GGUF reader and everything that is read from metadata, over arbitrary bytes: a model's
// description, its tokenizer. They must end; what is accepted must lie within the input, and a
// tokenizer that was accepted must encode a text to tokens of its own.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string_view>
#include <utility>

#include "hotset/engine/weights/loaded_model.h"
#include "hotset/engine/weights/model_tokenizer.h"
#include "hotset/model/gguf_file.h"
#include "hotset/text/tokenizer.h"

namespace {

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "gguf_fuzz: %s\n", what);
  std::abort();
}

void check_tensors(const hotset::model::GgufFile& file, std::span<const uint8_t> input) {
  for (const hotset::model::TensorInfo& tensor : file.tensors()) {
    const std::span<const uint8_t> bytes = file.tensor_bytes(tensor);
    require(
        bytes.data() >= input.data() && bytes.data() + bytes.size() <= input.data() + input.size(),
        "a tensor outside the file");
    require(file.find_tensor(tensor.name) == &tensor, "a tensor that is not found by its name");
  }
}

void check_tokenizer(const hotset::model::GgufFile& file) {
  auto spec = hotset::engine::read_tokenizer_spec(file);
  if (!spec) return;
  const auto tokenizer = hotset::text::Tokenizer::create(*std::move(spec));
  if (!tokenizer) return;
  constexpr std::string_view kText = "Text 42,  with\n\xC3\xA9 and \xFF.";
  const auto ids = tokenizer->encode(kText, {.add_bos = true, .add_eos = true});
  if (!ids) return;
  for (const int32_t id : *ids) {
    require(id >= 0 && id < tokenizer->n_tokens(), "an id that is no token");
  }
  require(tokenizer->decode(*ids).has_value(), "ids that do not decode");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n_bytes) {
  const std::span<const uint8_t> input(data, n_bytes);
  auto file = hotset::model::GgufFile::parse(input, "fuzz");
  if (!file) return 0;
  check_tensors(*file, input);
  check_tokenizer(*file);
  const auto description = hotset::engine::describe_model(*std::move(file));
  if (!description) return 0;
  require(description->architecture != nullptr, "a model without an architecture");
  require(description->spec.n_vocab > 0, "a model without a vocabulary");
  return 0;
}
