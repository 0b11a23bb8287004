// What the subcommands of the one binary have in common. Each is declared by an add_*_command(),
// which adds its flags (flags.h) and a call that runs it and gives its exit status: 0 for success,
// 1 for an error that was reported (wrong usage is 2, from the parser). The work itself is done by
// functions over plain option structs, so that it can be tested without a command line.
// Thread-compatible.
#ifndef HOTSET_CLI_COMMAND_H_
#define HOTSET_CLI_COMMAND_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "hotset/base/error.h"

namespace hotset::cli {

// Reports a failed command on stderr; the exit status that goes with it. Output that is still on
// its way to stdout is written first: that it cannot be is a failure as well.
int report(const Status& status);

// The error of a write to stdout that failed just now (errno says why).
std::unexpected<Error> stdout_error();

// "1,2,3" to ids. Errors: kInvalidArgument, naming `flag` and the part that is no number.
Result<std::vector<int32_t>> parse_ids(std::string_view flag, std::string_view list);

// That ids are tokens of a model. Errors: kInvalidArgument, naming `flag`, the id and the range.
Status check_ids(std::string_view flag, std::span<const int32_t> ids, int64_t n_vocab);

}  // namespace hotset::cli

#endif  // HOTSET_CLI_COMMAND_H_
