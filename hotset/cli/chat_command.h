// `hotset run -i`: a conversation on standard input and output.
#ifndef HOTSET_CLI_CHAT_COMMAND_H_
#define HOTSET_CLI_CHAT_COMMAND_H_

#include "hotset/base/error.h"
#include "hotset/cli/run_command.h"

namespace hotset::cli {

// Each line of standard input is a message; one that ends with a backslash goes on in the next
// line.
// "/clear" begins anew, "/exit" and the end of input end. Ctrl-C stops a reply, a second one the
// program. Replies go to stdout as they come, each ended by a newline; with `json` one object per
// reply and line. A prompt is shown where input is a terminal. `prompt` or `prompt_file` is the
// first message.
// A message that the model cannot be given (a template that refuses it, a context that is full) is
// reported, and the conversation goes on; at the end the command fails with the last such error.
// Errors: kInvalidArgument, and what loading and computing give.
Status chat(const RunOptions& options);

}  // namespace hotset::cli

#endif  // HOTSET_CLI_CHAT_COMMAND_H_
