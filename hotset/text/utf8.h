// UTF-8 (hotset/base/utf8.h) under text's own name, where encoders and parsers look for it.
// Thread-safe: pure functions.
#ifndef HOTSET_TEXT_UTF8_H_
#define HOTSET_TEXT_UTF8_H_

#include "hotset/base/utf8.h"

namespace hotset::text {

using hotset::append_utf8;
using hotset::kReplacementCharacter;
using hotset::next_utf8;
using hotset::Utf8Kind;
using hotset::Utf8Step;
using hotset::valid_utf8_prefix;

}  // namespace hotset::text

#endif  // HOTSET_TEXT_UTF8_H_
