#include "hotset/text/script_pool.h"

#include <chrono>
#include <utility>

namespace hotset::text {

ScriptPool::ScriptPool(Make make, ScriptPoolOptions options)
    : make_(std::move(make)), options_(std::move(options)) {
  HOTSET_CHECK(0 < options_.max_large && options_.max_large < options_.max_runtimes);
  memory_ = std::make_shared<ScriptMemory>(
      Bytes{options_.limits.memory.count * ScriptPoolOptions::kMemoryShares});
  options_.limits.shared = memory_;
}

Result<std::unique_ptr<ScriptPool>> ScriptPool::create(Make make, ScriptPoolOptions options) {
  std::unique_ptr<ScriptPool> pool(new ScriptPool(std::move(make), std::move(options)));
  HOTSET_TRY(auto first, pool->make());
  pool->unused_.push_back(std::move(first));
  return pool;
}

Result<std::unique_ptr<ScriptRuntime>> ScriptPool::make() {
  HOTSET_TRY(auto runtime, make_(options_.limits));
  const std::scoped_lock lock(mutex_);
  ++n_runtimes_;
  return runtime;
}

Result<ScriptPool::Lease> ScriptPool::take(size_t n_input_bytes) {
  const bool is_large = n_input_bytes >= options_.large_bytes;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    const bool is_free = !unused_.empty() || n_calls_ < options_.max_runtimes;
    return is_free && (!is_large || n_large_ < options_.max_large);
  });
  // Counted from here on, so that nobody else takes the place.
  ++n_calls_;
  n_large_ += is_large ? 1 : 0;
  if (n_calls_ > 1) {
    changed_.wait_for(lock, std::chrono::duration<double, std::micro>(options_.patience_us),
                      [&] { return !unused_.empty(); });
  }
  if (!unused_.empty()) {
    auto runtime = std::move(unused_.back());
    unused_.pop_back();
    return Lease(*this, is_large, std::move(runtime));
  }
  lock.unlock();
  auto made = make();
  if (made) return Lease(*this, is_large, *std::move(made));
  give_back(nullptr, is_large);
  return std::unexpected(std::move(made).error());
}

void ScriptPool::give_back(std::unique_ptr<ScriptRuntime> runtime, bool is_large) {
  {
    const std::scoped_lock lock(mutex_);
    --n_calls_;
    n_large_ -= is_large ? 1 : 0;
    const bool is_wanted = runtime != nullptr && !runtime->is_spent() && unused_.empty();
    if (is_wanted) {
      unused_.push_back(std::move(runtime));
    } else if (runtime != nullptr) {
      --n_runtimes_;
    }
    changed_.notify_all();
  }
  // One that is not kept ends here, outside the lock.
}

ScriptPool::Lease::~Lease() {
  if (runtime_ != nullptr) pool_->give_back(std::move(runtime_), is_large_);
}

int32_t ScriptPool::n_runtimes() const {
  const std::scoped_lock lock(mutex_);
  return n_runtimes_;
}

}  // namespace hotset::text
