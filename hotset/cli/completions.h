// Completions for shells, made of the reference of commands and flags: what completes commands,
// flags, the values of flags that take one of a few words, and files where a flag takes one.
// Thread-safe: pure functions.
#ifndef HOTSET_CLI_COMPLETIONS_H_
#define HOTSET_CLI_COMPLETIONS_H_

#include <string>

#include "hotset/cli/command_reference.h"

namespace hotset::cli {

// For bash 4 and newer; needs nothing of the package bash-completion, which loads it by its name.
std::string bash_completion(const CommandReference& program);

// For zsh: a file _hotset in a folder of $fpath, or sourced behind compinit.
std::string zsh_completion(const CommandReference& program);

// For fish 3 and newer.
std::string fish_completion(const CommandReference& program);

}  // namespace hotset::cli

#endif  // HOTSET_CLI_COMPLETIONS_H_
