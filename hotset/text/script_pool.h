// Runtimes with the same scripts, for several calls at once: made when they are needed, few, and
// with a memory limit for all of them. One is kept while nobody calls.
//
// Calls with a large input may take seconds, so only some runtimes are for them: a small call finds
// another one. Calls that are quickly done rather wait for each other than for a runtime to be
// made. Owns the runtimes. Thread-safe.
#ifndef HOTSET_TEXT_SCRIPT_POOL_H_
#define HOTSET_TEXT_SCRIPT_POOL_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/text/script_runtime.h"

namespace hotset::text {

struct ScriptPoolOptions {
  int32_t max_runtimes = 4;      // at once
  int32_t max_large = 2;         // of them, with a large input; less than max_runtimes
  size_t large_bytes = 1 << 18;  // from which on an input is large: a tenth of a second or so
  // How long a call waits for a runtime that exists before one is made, which takes about as long.
  double patience_us = 50e3;
  // Of one call. Its memory is also that of a runtime; all together have kMemoryShares times that.
  ScriptLimits limits = {};
  static constexpr int64_t kMemoryShares = 3;  // two large calls leave one for the small ones
};

class ScriptPool {
 public:
  // Makes a runtime with its scripts in it. May be called by several threads at once.
  using Make = std::function<Result<std::unique_ptr<ScriptRuntime>>(const ScriptLimits& limits)>;

  // Makes the first one. Errors: those of `make`.
  static Result<std::unique_ptr<ScriptPool>> create(Make make, ScriptPoolOptions options);
  ScriptPool(const ScriptPool&) = delete;
  ScriptPool& operator=(const ScriptPool&) = delete;

  // A runtime for one call at a time, until this is destroyed.
  class Lease {
   public:
    Lease(Lease&& other) noexcept = default;
    Lease& operator=(Lease&&) = delete;
    ~Lease();

    ScriptRuntime& operator*() const { return *runtime_; }
    ScriptRuntime* operator->() const { return runtime_.get(); }

   private:
    friend class ScriptPool;
    Lease(ScriptPool& pool, bool is_large, std::unique_ptr<ScriptRuntime> runtime)
        : pool_(&pool), is_large_(is_large), runtime_(std::move(runtime)) {}

    ScriptPool* pool_;
    bool is_large_;
    std::unique_ptr<ScriptRuntime> runtime_;  // null once moved from
  };

  // A runtime for an input of that many bytes; waits until there is one. Errors: those of `make`.
  Result<Lease> take(size_t n_input_bytes);

  // Runtimes that there are, used or not.
  int32_t n_runtimes() const;
  // What all of them hold.
  Bytes used_memory() const { return memory_->used(); }

 private:
  ScriptPool(Make make, ScriptPoolOptions options);
  Result<std::unique_ptr<ScriptRuntime>> make();
  void give_back(std::unique_ptr<ScriptRuntime> runtime, bool is_large);

  Make make_;
  ScriptPoolOptions options_;
  std::shared_ptr<ScriptMemory> memory_;
  mutable std::mutex mutex_;  // of the next ones
  std::condition_variable changed_;
  std::vector<std::unique_ptr<ScriptRuntime>> unused_;
  int32_t n_runtimes_ = 0;
  int32_t n_calls_ = 0;  // that have a runtime, or are about to
  int32_t n_large_ = 0;  // of them
};

}  // namespace hotset::text

#endif  // HOTSET_TEXT_SCRIPT_POOL_H_
