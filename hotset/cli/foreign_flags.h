// Command lines that people bring from other programs on ggml (llama.cpp's and its relatives, and
// KTransformers): which of their flags hotset has under another name, which change nothing here,
// and which it refuses, and why. foreign_flag_table.cc is the data.
//
// Flags are looked at before the parser sees them, because it knows short flags of one letter only
// and would take -cmoe for -c with the value "moe". The rule: a dash and two or more letters are
// one name, never a letter with its value; a value may stick to a one-letter flag where it begins
// with anything but a letter (-t8, -c4096, -n-1, -m./x.gguf).
// Thread-safe: pure functions over constant data.
#ifndef HOTSET_CLI_FOREIGN_FLAGS_H_
#define HOTSET_CLI_FOREIGN_FLAGS_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hotset/base/error.h"

namespace hotset::cli {

enum class Takes : uint8_t {
  kNothing,
  kValue,
  kMaybe,  // a value, if what follows is one
};

enum class Does : uint8_t {
  kSame,     // `flag` with the same value
  kSet,      // `flag` with `value`, unless the user gives `flag` as well
  kIgnored,  // nothing, which is said
  kRefused,  // an error
};

// What becomes of one flag, or of some of its values.
struct ForeignFlag {
  std::string_view names;  // "-b --batch-size"
  Takes takes = Takes::kNothing;
  Does does = Does::kIgnored;
  std::string_view flag = {};   // hotset's, of kSame and kSet
  std::string_view value = {};  // of kSet; $ stands for the value that was given; empty: a switch
  std::string_view note = {};   // why; of kSet: empty, it means the same
  // Values that this is about: "a|b"; "()": none was given; "~x": those with an x in them; "<512":
  // smaller numbers; empty: any.
  std::string_view values = {};
  bool (*applies)(std::string_view value) = nullptr;  // instead of `values`, which only says it
  std::string_view command = {};                      // it alone has this; empty: any
  std::string_view missing = {};  // only commands that lack this flag; empty: any

  constexpr ForeignFlag with(std::string_view those) const {
    ForeignFlag row = *this;
    row.values = those;
    return row;
  }
  constexpr ForeignFlag where(std::string_view those, bool (*test)(std::string_view)) const {
    ForeignFlag row = with(those);
    row.applies = test;
    return row;
  }
  constexpr ForeignFlag without(std::string_view own) const {
    ForeignFlag row = *this;
    row.missing = own;
    return row;
  }
  constexpr ForeignFlag in(std::string_view one) const {
    ForeignFlag row = *this;
    row.command = one;
    return row;
  }
};

struct ForeignFlagSection {
  std::string_view title;
  std::span<const ForeignFlag> rows;
};

// All of them. Of rows with the same name the first one that holds is meant.
std::span<const ForeignFlagSection> foreign_flags();

// A flag of hotset's own.
struct OwnFlag {
  std::vector<std::string> names;  // with dashes
  int n_values = 0;                // 0: a switch
  std::string variable = {};       // of the environment; empty: none, and no configuration has it
};

// A command and what it takes.
struct CommandFlags {
  std::string command;  // "serve"
  std::vector<OwnFlag> flags;
  bool takes_positionals = false;

  const OwnFlag* find(std::string_view name) const;
  // Whether it loads a model, so that the flags of other programs mean something to it.
  bool knows_foreign_flags() const { return find("--n-gpu-layers") != nullptr; }
};

struct Translation {
  std::vector<std::string> arguments;  // hotset's flags only
  std::vector<std::string> notes;      // what to tell the user, a line each
};

// Says `arguments`, those behind the command's name, in the flags of `own`. Everything behind "--"
// stays, and so does what is no flag. `all` are the commands there are, for advice.
// Errors: kInvalidArgument, naming the flag, why nothing takes it, and the nearest one.
Result<Translation> translate_arguments(const CommandFlags& own, std::span<const CommandFlags> all,
                                        std::span<const std::string> arguments);

// What the table says of a name ("batch-size", "-b"), for places that are no command line; empty:
// nothing.
std::string about_foreign_flag(std::string_view name);

}  // namespace hotset::cli

#endif  // HOTSET_CLI_FOREIGN_FLAGS_H_
