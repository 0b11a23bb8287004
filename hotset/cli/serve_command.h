// `hotset serve`: a model behind HTTP, for days.
#ifndef HOTSET_CLI_SERVE_COMMAND_H_
#define HOTSET_CLI_SERVE_COMMAND_H_

#include <cstdint>
#include <string>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/cli/run_command.h"

namespace hotset::cli {

struct ServeOptions {
  // Of `run`: the model, sampling where a request does not say, the chat template, n_predict.
  RunOptions run;
  std::string version;
  std::string host = "127.0.0.1";
  int port = 8080;               // 0: any, which is said
  int32_t n_parallel = 4;        // sequences decoded together
  int32_t max_queued = 64;       // requests that may wait beyond them
  int32_t prefill_chunk = 0;     // tokens of prompts between two decode steps; 0: the ubatch
  int64_t cache_ram_mib = 1024;  // for prompts whose slot others have taken
  // Names of the model; answers have the first one. None: its file's, and any may be asked for.
  std::vector<std::string> aliases = {};
  std::vector<std::string> api_keys = {};
  std::string api_key_file = {};  // a key per line; empty: none
  std::string cors_origin = {};
  std::vector<std::string> allowed_hosts = {};  // names that requests may be for; "*": any
  double drain_s = 30;                          // how long what runs may go on behind SIGTERM
  double client_timeout_s = 15;  // for a header, between pieces of a body, until something is read
  int32_t max_connections = 512;
  int64_t max_body_mib = 64;
  int32_t max_choices = 16;
};

// Returns when SIGTERM or Ctrl-C has come and what ran has ended, at most drain_s later.
// Errors: kInvalidArgument, kIo: the flags, the address; those of loading the model.
Status serve(ServeOptions options);

}  // namespace hotset::cli

#endif  // HOTSET_CLI_SERVE_COMMAND_H_
