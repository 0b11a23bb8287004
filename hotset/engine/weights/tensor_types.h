// Tensor types by their names, for flags.
// Thread-safe.
#ifndef HOTSET_ENGINE_WEIGHTS_TENSOR_TYPES_H_
#define HOTSET_ENGINE_WEIGHTS_TENSOR_TYPES_H_

#include <ggml.h>

#include <string_view>

#include "hotset/base/error.h"

namespace hotset::engine {

// The type of that name, case does not matter. Errors: kInvalidArgument, naming `flag` and listing
// the types.
Result<ggml_type> parse_type(std::string_view flag, std::string_view name);

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_WEIGHTS_TENSOR_TYPES_H_
