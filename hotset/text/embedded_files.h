// Files that are part of the program: the build puts their text in (cmake/EmbedFiles.cmake).
// Thread-safe: constants.
#ifndef HOTSET_TEXT_EMBEDDED_FILES_H_
#define HOTSET_TEXT_EMBEDDED_FILES_H_

#include <span>
#include <string_view>

namespace hotset::text {

struct EmbeddedFile {
  std::string_view name;  // without folder and extension
  std::string_view content;
};

// @huggingface/jinja, a CommonJS module.
std::span<const EmbeddedFile> jinja_library();
// What hotset puts around it, to be run in this order.
std::span<const EmbeddedFile> jinja_scripts();
// Jinja text, by the names of builtin_chat_templates().
std::span<const EmbeddedFile> chat_template_files();

}  // namespace hotset::text

#endif  // HOTSET_TEXT_EMBEDDED_FILES_H_
