// `hotset info`: what a model file holds, without loading its weights.
#ifndef HOTSET_CLI_INFO_COMMAND_H_
#define HOTSET_CLI_INFO_COMMAND_H_

#include <string>

#include "hotset/base/error.h"
#include "hotset/measure/model_options.h"

namespace hotset::cli {

struct InfoOptions {
  std::string model;
  bool json = false;
  bool tensors = false;  // list every tensor
  bool plan = false;     // what would go where, with the flags of `planned`
  measure::ModelOptions planned = {};
};

// Prints to stdout. Errors: those of engine::describe_model; with a plan those of the flags and the
// device, and kOutOfMemory for a plan that does not fit, which is printed all the same.
Status info(const InfoOptions& options);

}  // namespace hotset::cli

#endif  // HOTSET_CLI_INFO_COMMAND_H_
