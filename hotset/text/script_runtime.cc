#include "hotset/text/script_runtime.h"

#include <pthread.h>
#include <quickjs/quickjs.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <functional>
#include <system_error>
#include <utility>

#include "hotset/base/allocation.h"

namespace hotset::text {
namespace {

// Scripts run on a stack of a known size, whatever the caller's thread has. A template nests by
// some ten frames of a few hundred bytes per block or call; one that walks a schema as deep as a
// request may have it, or arguments, takes up to 3 MiB. The rest of the stack is for what scripts
// call.
constexpr size_t kMaxStackBytes = 6 << 20;
constexpr size_t kThreadStackBytes = 8 << 20;

// Calls `work` on a thread of its own and waits for it. Errors: kOutOfMemory: there is none.
Status on_own_stack(std::function<void()> work) {
  struct Call {
    std::function<void()> work;
    std::exception_ptr thrown = {};
  } call{std::move(work)};
  const auto run = [](void* argument) -> void* {
    auto* given = static_cast<Call*>(argument);
    try {
      given->work();
    } catch (...) {
      given->thrown = std::current_exception();
    }
    return nullptr;
  };
  pthread_attr_t attributes;
  pthread_t thread = {};
  int failed = pthread_attr_init(&attributes);
  if (failed == 0) {
    failed = pthread_attr_setstacksize(&attributes, kThreadStackBytes);
    if (failed == 0) failed = pthread_create(&thread, &attributes, run, &call);
    pthread_attr_destroy(&attributes);
  }
  if (failed != 0) {
    return make_error(ErrorCode::kOutOfMemory, "no thread to run scripts on: {}",
                      std::generic_category().message(failed));
  }
  pthread_join(thread, nullptr);
  if (call.thrown) std::rethrow_exception(call.thrown);
  return {};
}

// In front of all memory of a runtime. A multiple of the alignment that malloc() gives.
struct alignas(std::max_align_t) Block {
  Block* previous = nullptr;
  Block* next = nullptr;
  size_t n_bytes = 0;  // behind this header
};

}  // namespace

bool ScriptMemory::add(int64_t n_bytes) {
  const int64_t before = used_.fetch_add(n_bytes, std::memory_order_relaxed);
  if (n_bytes <= 0 || before + n_bytes <= limit_.count) return true;
  used_.fetch_sub(n_bytes, std::memory_order_relaxed);
  return false;
}

struct ScriptRuntime::State {
  ScriptLimits limits;
  double deadline_us = 0;
  bool timed_out = false;
  bool memory_refused = false;
  bool shared_refused = false;  // other runtimes hold the memory
  bool spent = false;
  int64_t used = 0;  // bytes, with their headers
  int64_t peak = 0;
  int64_t live = 0;                                       // `used` after the last collection
  Block blocks = {.previous = &blocks, .next = &blocks};  // a ring with this one as its end
  JSRuntime* runtime = nullptr;
  JSContext* context = nullptr;

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // Scripts own nothing but memory, so that is all there is to give back. The library's own way out
  // ends the process where a failure of memory has made it lose track of an object.
  ~State() {
    while (blocks.next != &blocks) {
      Block* block = blocks.next;
      unlink(block);
      std::free(block);
    }
    if (limits.shared != nullptr) limits.shared->add(-used);
  }

  static void unlink(Block* block) {
    block->previous->next = block->next;
    block->next->previous = block->previous;
  }

  void link(Block* block) {
    block->previous = &blocks;
    block->next = blocks.next;
    blocks.next->previous = block;
    blocks.next = block;
  }

  void begin_call(double time_us) {
    deadline_us = limits.clock->now_us() + time_us;
    timed_out = memory_refused = shared_refused = false;
    JS_UpdateStackTop(runtime);  // the thread may be another one than last time
  }

  static int64_t cost_of(size_t n_bytes) { return static_cast<int64_t>(sizeof(Block) + n_bytes); }

  // Counts `change` bytes, here and where runtimes share memory. False: that would be too much.
  bool count(int64_t change) {
    if (used + change > limits.memory.count) return false;
    if (limits.shared != nullptr && !limits.shared->add(change)) {
      shared_refused = true;
      return false;
    }
    used += change;
    peak = std::max(peak, used);
    return true;
  }

  // The library's own account, by which it decides when to collect what is in cycles.
  static void book(JSMallocState& books, int64_t n_blocks, int64_t n_bytes) {
    books.malloc_count += static_cast<size_t>(n_blocks);
    books.malloc_size += static_cast<size_t>(n_bytes);
  }

  // Memory for `n_bytes` in place of `old` (null: for nothing); null where there is not enough.
  void* resize(JSMallocState& books, void* old, size_t n_bytes) {
    Block* block = old == nullptr ? nullptr : block_of(old);
    const int64_t before = block == nullptr ? 0 : cost_of(block->n_bytes);
    const bool is_countable = n_bytes < static_cast<size_t>(limits.memory.count);
    const int64_t change = is_countable ? cost_of(n_bytes) - before : 0;
    if (!is_countable || !count(change)) {
      memory_refused = true;
      return nullptr;
    }
    if (block != nullptr) unlink(block);
    auto* moved = static_cast<Block*>(std::realloc(block, sizeof(Block) + n_bytes));
    if (moved == nullptr) {
      if (block != nullptr) link(block);
      count(-change);
      memory_refused = true;
      return nullptr;
    }
    moved->n_bytes = n_bytes;
    link(moved);
    book(books, block == nullptr ? 1 : 0, change);
    return moved + 1;
  }

  static Block* block_of(void* memory) { return static_cast<Block*>(memory) - 1; }

  static void* allocate(JSMallocState* books, size_t n_bytes) {
    return static_cast<State*>(books->opaque)->resize(*books, nullptr, n_bytes);
  }

  static void release(JSMallocState* books, void* memory) {
    if (memory == nullptr) return;
    Block* block = block_of(memory);
    const int64_t cost = cost_of(block->n_bytes);
    static_cast<State*>(books->opaque)->count(-cost);
    book(*books, -1, -cost);
    unlink(block);
    std::free(block);
  }

  static void* reallocate(JSMallocState* books, void* memory, size_t n_bytes) {
    if (n_bytes > 0) return static_cast<State*>(books->opaque)->resize(*books, memory, n_bytes);
    release(books, memory);
    return nullptr;
  }

  // Scripts leave cycles behind, which only a collection frees; the library begins one where it
  // makes an object, so that the last call's garbage would stay as long as nobody calls.
  void collect() {
    if (used <= live + kMaxGarbage.count || spent) return;
    JS_RunGC(runtime);
    live = used;
  }

  static size_t usable_size(const void* memory) {
    return memory == nullptr ? 0 : (static_cast<const Block*>(memory) - 1)->n_bytes;
  }

  // Whether to end the script that runs.
  static int interrupt(JSRuntime*, void* opaque) {
    auto* state = static_cast<State*>(opaque);
    if (state->limits.clock->now_us() < state->deadline_us) return 0;
    state->timed_out = true;
    return 1;
  }

  std::string text_of(JSValue value) const {
    size_t n_bytes = 0;
    const char* bytes = JS_ToCStringLen(context, &n_bytes, value);
    if (bytes == nullptr) {
      JS_FreeValue(context, JS_GetException(context));
      return "an exception without a text";
    }
    std::string text(bytes, n_bytes);
    JS_FreeCString(context, bytes);
    return text;
  }

  // The exception that is pending, as an error. A limit counts even if the script has caught what
  // came of it: who knows what it did without the memory.
  std::unexpected<Error> failure() {
    const JSValue exception = JS_GetException(context);
    const std::string text = text_of(exception);
    JS_FreeValue(context, exception);
    if (auto limit = check_limits(); !limit) return std::unexpected(std::move(limit).error());
    if (text.contains("string too long")) {
      spent = true;
      return make_error(ErrorCode::kOutOfMemory, "needs more memory: makes a text of over 1 GiB");
    }
    const bool too_deep = text.contains("stack overflow");
    return make_error(too_deep ? ErrorCode::kUnsupported : ErrorCode::kInternal, "{}",
                      too_deep ? "nested too deeply" : text);
  }

  Status check_limits() {
    spent = spent || memory_refused || timed_out;
    if (shared_refused) {
      return make_error(ErrorCode::kOutOfMemory, "needs more memory than others leave of {}",
                        to_string(limits.shared->limit()));
    }
    if (memory_refused) {
      return make_error(ErrorCode::kOutOfMemory, "needs more than {} of memory",
                        to_string(limits.memory));
    }
    if (timed_out) {
      return make_error(ErrorCode::kCancelled, "still running after {:.1f} s",
                        limits.time_us / 1e6);
    }
    return {};
  }
};

ScriptRuntime::ScriptRuntime(std::unique_ptr<State> state) : state_(std::move(state)) {}
ScriptRuntime::~ScriptRuntime() = default;

Result<std::unique_ptr<ScriptRuntime>> ScriptRuntime::create(const ScriptLimits& limits) {
  auto state = std::make_unique<State>();
  state->limits = limits;
  const JSMallocFunctions functions = {
      .js_malloc = State::allocate,
      .js_free = State::release,
      .js_realloc = State::reallocate,
      .js_malloc_usable_size = State::usable_size,
  };
  state->runtime = JS_NewRuntime2(&functions, state.get());
  if (state->runtime != nullptr) {
    JS_SetMaxStackSize(state->runtime, kMaxStackBytes);
    JS_SetInterruptHandler(state->runtime, State::interrupt, state.get());
    state->context = JS_NewContextRaw(state->runtime);
  }
  if (state->context == nullptr) {
    return make_error(ErrorCode::kOutOfMemory, "scripts: found a limit of {}, which is too little",
                      to_string(limits.memory));
  }
  JSContext* context = state->context;
  JS_AddIntrinsicBaseObjects(context);
  JS_AddIntrinsicEval(context);
  JS_AddIntrinsicRegExp(context);
  JS_AddIntrinsicJSON(context);
  JS_AddIntrinsicProxy(context);
  JS_AddIntrinsicMapSet(context);
  HOTSET_RETURN_IF_ERROR(state->check_limits());
  return std::unique_ptr<ScriptRuntime>(new ScriptRuntime(std::move(state)));
}

namespace {

// QuickJS's compiler crashes where the system refuses memory, and calls may: without room for what
// a source or an argument of `n_bytes` becomes nothing is begun.
Status expect_room(std::string_view what, size_t n_bytes) {
  constexpr int64_t kCopies = 16;
  const auto n = static_cast<int64_t>(n_bytes);
  return expect_memory(what, Bytes{(16 << 20) + kCopies * n});
}

}  // namespace

Status ScriptRuntime::load(std::string_view name, std::string_view source) {
  HOTSET_RETURN_IF_ERROR(expect_room(name, source.size()));
  Status status;
  HOTSET_RETURN_IF_ERROR(on_own_stack([&] { status = load_here(name, source); }));
  return status;
}

Status ScriptRuntime::load_here(std::string_view name, std::string_view source) {
  const std::string script(source);  // ends with a zero, which the parser wants
  state_->begin_call(state_->limits.time_us);
  const JSValue value = JS_Eval(state_->context, script.c_str(), script.size(),
                                std::string(name).c_str(), JS_EVAL_TYPE_GLOBAL);
  if (JS_IsException(value)) return add_context(state_->failure().error(), name);
  JS_FreeValue(state_->context, value);
  state_->collect();
  return state_->check_limits();
}

Status ScriptRuntime::seal() {
  return load("seal", R"(
    delete globalThis.eval;
    delete globalThis.Function;
    for (const f of [function () {}, function* () {}]) {
      Object.defineProperty(Object.getPrototypeOf(f), "constructor", { value: undefined });
    }
  )");
}

Result<std::string> ScriptRuntime::call(const char* object, const char* function,
                                        std::string_view argument) {
  HOTSET_RETURN_IF_ERROR(expect_room(function, argument.size()));
  Result<std::string> result;
  HOTSET_RETURN_IF_ERROR(on_own_stack([&] { result = call_here(object, function, argument); }));
  return result;
}

Result<std::string> ScriptRuntime::call_here(const char* object, const char* function,
                                             std::string_view argument) {
  JSContext* context = state_->context;
  state_->begin_call(state_->limits.time_us);
  const JSValue global = JS_GetGlobalObject(context);
  const JSValue owner = JS_GetPropertyStr(context, global, object);
  const JSValue callee = JS_GetPropertyStr(context, owner, function);
  JSValue text = JS_NewStringLen(context, argument.data(), argument.size());
  const JSValue result =
      JS_IsException(text) ? JS_EXCEPTION : JS_Call(context, callee, owner, 1, &text);
  for (const JSValue value : {text, callee, owner, global}) JS_FreeValue(context, value);
  if (JS_IsException(result)) {
    auto failed = state_->failure();
    state_->collect();
    return failed;
  }
  const bool is_string = JS_IsString(result) != 0;
  std::string returned = is_string ? state_->text_of(result) : std::string();
  JS_FreeValue(context, result);
  state_->collect();
  HOTSET_RETURN_IF_ERROR(state_->check_limits());
  if (!is_string) {
    return make_error(ErrorCode::kInternal, "{}.{}: found no string", object, function);
  }
  return returned;
}

bool ScriptRuntime::is_spent() const { return state_->spent; }

Bytes ScriptRuntime::peak_memory() const { return {state_->peak}; }

Bytes ScriptRuntime::used_memory() const { return {state_->used}; }

}  // namespace hotset::text
