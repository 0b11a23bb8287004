// Files that are read or written whole.
// Thread-compatible: pure functions over what they are given.
#ifndef HOTSET_BASE_TEXT_FILE_H_
#define HOTSET_BASE_TEXT_FILE_H_

#include <string>

#include "hotset/base/error.h"

namespace hotset {

// The bytes of a file, or of standard input for "-". Errors: kNotFound, kIo; kInvalidArgument for
// more than 1 GiB.
Result<std::string> read_text(const std::string& path);

// Replaces `path`. Errors: kIo, naming the file.
Status write_text_file(const std::string& path, const std::string& text);

}  // namespace hotset

#endif  // HOTSET_BASE_TEXT_FILE_H_
