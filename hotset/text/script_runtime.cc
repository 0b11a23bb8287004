#include "hotset/text/script_runtime.h"

#include <quickjs/quickjs.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <utility>

#include "hotset/base/allocation.h"

namespace hotset::text {
namespace {

// Of the machine's stack, which is 8 MiB in most threads. A template nests by some ten frames per
// block or call, of a few hundred bytes each.
constexpr size_t kMaxStackBytes = 1 << 20;

// In front of all memory of a runtime. A multiple of the alignment that malloc() gives.
struct alignas(std::max_align_t) Block {
  Block* previous = nullptr;
  Block* next = nullptr;
  size_t n_bytes = 0;  // behind this header
};

}  // namespace

struct ScriptRuntime::State {
  ScriptLimits limits;
  double deadline_us = 0;
  bool timed_out = false;
  bool memory_refused = false;
  bool spent = false;
  int64_t used = 0;  // bytes
  int64_t peak = 0;
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
    timed_out = memory_refused = false;
    JS_UpdateStackTop(runtime);  // the thread may be another one than last time
  }

  // Memory for `n_bytes` in place of `old` (null: for nothing); null where there is not enough.
  void* resize(void* old, size_t n_bytes) {
    Block* block = old == nullptr ? nullptr : block_of(old);
    const auto before = static_cast<int64_t>(block == nullptr ? 0 : block->n_bytes);
    const bool fits = n_bytes < static_cast<size_t>(limits.memory.count) &&
                      used - before + static_cast<int64_t>(n_bytes) <= limits.memory.count;
    if (block != nullptr && fits) unlink(block);
    auto* moved =
        fits ? static_cast<Block*>(std::realloc(block, sizeof(Block) + n_bytes)) : nullptr;
    if (moved == nullptr) {
      if (block != nullptr && fits) link(block);
      memory_refused = true;
      return nullptr;
    }
    moved->n_bytes = n_bytes;
    link(moved);
    used += static_cast<int64_t>(n_bytes) - before;
    peak = std::max(peak, used);
    return moved + 1;
  }

  static Block* block_of(void* memory) { return static_cast<Block*>(memory) - 1; }

  static void* allocate(JSMallocState* opaque, size_t n_bytes) {
    return static_cast<State*>(opaque->opaque)->resize(nullptr, n_bytes);
  }

  static void release(JSMallocState* opaque, void* memory) {
    if (memory == nullptr) return;
    Block* block = block_of(memory);
    static_cast<State*>(opaque->opaque)->used -= static_cast<int64_t>(block->n_bytes);
    unlink(block);
    std::free(block);
  }

  static void* reallocate(JSMallocState* opaque, void* memory, size_t n_bytes) {
    if (n_bytes > 0) return static_cast<State*>(opaque->opaque)->resize(memory, n_bytes);
    release(opaque, memory);
    return nullptr;
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
  const std::string script(source);  // ends with a zero, which the parser wants
  state_->begin_call(state_->limits.time_us);
  const JSValue value = JS_Eval(state_->context, script.c_str(), script.size(),
                                std::string(name).c_str(), JS_EVAL_TYPE_GLOBAL);
  if (JS_IsException(value)) return add_context(state_->failure().error(), name);
  JS_FreeValue(state_->context, value);
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
  JSContext* context = state_->context;
  state_->begin_call(state_->limits.time_us);
  const JSValue global = JS_GetGlobalObject(context);
  const JSValue owner = JS_GetPropertyStr(context, global, object);
  const JSValue callee = JS_GetPropertyStr(context, owner, function);
  JSValue text = JS_NewStringLen(context, argument.data(), argument.size());
  const JSValue result =
      JS_IsException(text) ? JS_EXCEPTION : JS_Call(context, callee, owner, 1, &text);
  for (const JSValue value : {text, callee, owner, global}) JS_FreeValue(context, value);
  if (JS_IsException(result)) return state_->failure();
  const bool is_string = JS_IsString(result) != 0;
  std::string returned = is_string ? state_->text_of(result) : std::string();
  JS_FreeValue(context, result);
  HOTSET_RETURN_IF_ERROR(state_->check_limits());
  if (!is_string) {
    return make_error(ErrorCode::kInternal, "{}.{}: found no string", object, function);
  }
  return returned;
}

bool ScriptRuntime::is_spent() const { return state_->spent; }

Bytes ScriptRuntime::peak_memory() const { return {state_->peak}; }

}  // namespace hotset::text
