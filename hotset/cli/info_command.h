// `hotset info`: what a model file holds, without loading its weights.
#ifndef HOTSET_CLI_INFO_COMMAND_H_
#define HOTSET_CLI_INFO_COMMAND_H_

#include <string>

#include "hotset/base/error.h"

namespace hotset::cli {

struct InfoOptions {
  std::string model;
  bool json = false;
  bool tensors = false;  // list every tensor
};

// Prints to stdout. Errors: those of engine::describe_model.
Status info(const InfoOptions& options);

}  // namespace hotset::cli

#endif  // HOTSET_CLI_INFO_COMMAND_H_
