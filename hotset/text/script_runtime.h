// A sandbox for JavaScript (QuickJS): scripts can compute, and nothing else. There are no files,
// no network, no modules, no clock and no `eval`; memory, time and depth are bounded.
// Owns all memory of its scripts, and a thread for as long as one of them runs.
// Thread-compatible: any thread, one at a time.
#ifndef HOTSET_TEXT_SCRIPT_RUNTIME_H_
#define HOTSET_TEXT_SCRIPT_RUNTIME_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "hotset/base/clock.h"
#include "hotset/base/error.h"
#include "hotset/base/units.h"

namespace hotset::text {

// Memory that several runtimes share.
// Thread-safe.
class ScriptMemory {
 public:
  explicit ScriptMemory(Bytes limit) : limit_(limit) {}

  Bytes limit() const { return limit_; }
  Bytes used() const { return {used_.load(std::memory_order_relaxed)}; }
  // Changes what is used by that much; false, and nothing changes, where that would be too much.
  bool add(int64_t n_bytes);

 private:
  Bytes limit_;
  std::atomic<int64_t> used_ = 0;  // bytes
};

struct ScriptLimits {
  Bytes memory = mib(256);  // of everything that the scripts hold, with what keeping it takes
  double time_us = 10e6;    // of one call
  const Clock* clock = &steady_clock();
  std::shared_ptr<ScriptMemory> shared = {};  // with other runtimes; null: with none
};

class ScriptRuntime {
 public:
  // Errors: kOutOfMemory: `limits.memory` is too little even for the language.
  static Result<std::unique_ptr<ScriptRuntime>> create(const ScriptLimits& limits);
  ~ScriptRuntime();
  ScriptRuntime(const ScriptRuntime&) = delete;
  ScriptRuntime& operator=(const ScriptRuntime&) = delete;

  // Runs a script, which may define what call() calls. Errors: as call().
  Status load(std::string_view name, std::string_view source);
  // Takes away what makes scripts of strings; load() does not work any more.
  Status seal();

  // The string that `object`.`function`(argument) gives; `object` is a global one. Bytes of
  // `argument` that are no UTF-8 become U+FFFD.
  // Errors: kOutOfMemory: the memory limit; kCancelled: the time limit; kUnsupported: calls nested
  // too deeply; kInternal: any other exception of the script, or no string. After the first two
  // the scripts may be in any state: is_spent(). They can be asked about it, in a new call.
  Result<std::string> call(const char* object, const char* function, std::string_view argument);

  // What the scripts hold now. What a call leaves behind is collected before it returns, as far as
  // it is worth the time: of garbage there is never more than kMaxGarbage.
  Bytes used_memory() const;
  static constexpr Bytes kMaxGarbage = mib(1);

  // Whether a limit was hit, so that this runtime should not be used for anything else.
  bool is_spent() const;
  // The most memory that scripts have held so far.
  Bytes peak_memory() const;

 private:
  struct State;
  explicit ScriptRuntime(std::unique_ptr<State> state);
  // On the stack of this thread.
  Status load_here(std::string_view name, std::string_view source);
  Result<std::string> call_here(const char* object, const char* function,
                                std::string_view argument);

  std::unique_ptr<State> state_;
};

}  // namespace hotset::text

#endif  // HOTSET_TEXT_SCRIPT_RUNTIME_H_
