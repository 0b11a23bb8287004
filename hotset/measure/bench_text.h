// The text that is measured where the user gives none: several kinds of prose and a little code.
// Part of the program (cmake/EmbedFiles.cmake). Thread-safe: constants.
#ifndef HOTSET_MEASURE_BENCH_TEXT_H_
#define HOTSET_MEASURE_BENCH_TEXT_H_

#include <span>

#include "hotset/text/embedded_files.h"

namespace hotset::measure {

using text::EmbeddedFile;

// One file, bench_text.txt.
std::span<const EmbeddedFile> bench_texts();

}  // namespace hotset::measure

#endif  // HOTSET_MEASURE_BENCH_TEXT_H_
