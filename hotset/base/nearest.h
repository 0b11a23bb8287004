// Which of the words that there are a misspelt one was meant to be.
// Thread-safe: pure functions.
#ifndef HOTSET_BASE_NEAREST_H_
#define HOTSET_BASE_NEAREST_H_

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace hotset {

// The fewest letters to insert, leave out, replace or swap with their neighbour that make `a` of
// `b`, none of them edited twice (optimal string alignment).
size_t edit_distance(std::string_view a, std::string_view b);

// The candidate that `word` most likely was meant to be; empty: none is like it. Leading dashes do
// not count, upper case is lower case, `_` is `-`, and a candidate that goes on where the word ends
// (--ctx, --ctx-size) is like it. Of equally near ones the first.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

// "; did you mean X?", or nothing where no candidate is like `word`.
std::string did_you_mean(std::string_view word, std::span<const std::string> candidates);

}  // namespace hotset

#endif  // HOTSET_BASE_NEAREST_H_
