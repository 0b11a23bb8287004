// Files that commands write whole.
// Thread-compatible: pure functions over what they are given.
#ifndef HOTSET_CLI_TEXT_FILE_H_
#define HOTSET_CLI_TEXT_FILE_H_

#include <string>

#include "hotset/base/error.h"

namespace hotset::cli {

// Replaces `path`. Errors: kIo, naming the file.
Status write_text_file(const std::string& path, const std::string& text);

}  // namespace hotset::cli

#endif  // HOTSET_CLI_TEXT_FILE_H_
