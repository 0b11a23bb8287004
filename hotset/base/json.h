// JSON texts from outside, read with a bound on their depth. Everything that copies, compares or
// writes a value calls itself for each level, so a text without a bound would end the process; this
// is the only way JSON is read in hotset (scripts/check_includes).
// Thread-safe: pure functions.
#ifndef HOTSET_BASE_JSON_H_
#define HOTSET_BASE_JSON_H_

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "hotset/base/error.h"

namespace hotset {

// How deep arrays and objects of a text may be nested. More is nobody's request or file.
inline constexpr int kMaxJsonDepth = 64;

// The value of a JSON text. Errors: kCorrupt: no JSON; kUnsupported: nested too deeply.
// The message goes on from "the body is" or "x.json: found a text that is".
Result<nlohmann::ordered_json> parse_json(std::string_view text, int max_depth = kMaxJsonDepth);

}  // namespace hotset

#endif  // HOTSET_BASE_JSON_H_
