#include "hotset/cli/command.h"

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>

#include "hotset/base/log.h"

namespace hotset::cli {

int report(const Status& status) {
  errno = 0;
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (status && written) return 0;
  log_error("{}", status ? stdout_error().error().message : status.error().message);
  return 1;
}

std::unexpected<Error> stdout_error() {
  // An earlier failure has left no reason.
  return make_error(ErrorCode::kIo, "standard output: cannot write{}{}", errno == 0 ? "" : ": ",
                    errno == 0 ? "" : std::strerror(errno));
}

Result<std::vector<int32_t>> parse_ids(std::string_view flag, std::string_view list) {
  std::vector<int32_t> ids;
  while (!list.empty()) {
    const size_t comma = list.find(',');
    std::string_view part = list.substr(0, comma);
    list = comma == std::string_view::npos ? std::string_view() : list.substr(comma + 1);
    const size_t first = part.find_first_not_of(" \t\n");
    part = first == std::string_view::npos
               ? std::string_view()
               : part.substr(first, part.find_last_not_of(" \t\n") - first + 1);
    int32_t id = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), id);
    if (error != std::errc() || end != part.data() + part.size()) {
      return make_error(ErrorCode::kInvalidArgument,
                        "{}: found '{}', expected token ids separated by commas", flag, part);
    }
    ids.push_back(id);
  }
  if (ids.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "{}: found nothing, expected token ids", flag);
  }
  return ids;
}

Status check_ids(std::string_view flag, std::span<const int32_t> ids, int64_t n_vocab) {
  for (const int32_t id : ids) {
    if (id >= 0 && id < n_vocab) continue;
    return make_error(ErrorCode::kInvalidArgument, "{}: found token id {}, expected 0 to {}", flag,
                      id, n_vocab - 1);
  }
  return {};
}

}  // namespace hotset::cli
