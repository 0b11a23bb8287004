// The page at GET /: one HTML text that needs nothing else.
// Thread-safe.
#ifndef HOTSET_SERVER_WEB_PAGE_H_
#define HOTSET_SERVER_WEB_PAGE_H_

#include <span>
#include <string_view>

namespace hotset::server {

// As cmake/EmbedFiles.cmake writes them.
struct EmbeddedFile {
  std::string_view name;
  std::string_view text;
};
std::span<const EmbeddedFile> web_files();

inline std::string_view web_page() { return web_files().front().text; }

}  // namespace hotset::server

#endif  // HOTSET_SERVER_WEB_PAGE_H_
