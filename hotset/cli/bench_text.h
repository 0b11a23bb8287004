// The text that is measured where the user gives none: several kinds of prose and a little code.
// Part of the program (cmake/EmbedFiles.cmake). Thread-safe: constants.
#ifndef HOTSET_CLI_BENCH_TEXT_H_
#define HOTSET_CLI_BENCH_TEXT_H_

#include <span>

#include "hotset/text/embedded_files.h"

namespace hotset::cli {

using text::EmbeddedFile;

// One file, bench_text.txt.
std::span<const EmbeddedFile> bench_texts();

}  // namespace hotset::cli

#endif  // HOTSET_CLI_BENCH_TEXT_H_
