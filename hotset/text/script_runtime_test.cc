#include "hotset/text/script_runtime.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

namespace hotset::text {
namespace {

using testing::HasSubstr;

// Every look at it takes a second.
class SlowClock : public Clock {
 public:
  double now_us() const override { return now_us_ += 1e6; }

 private:
  mutable double now_us_ = 0;
};

std::unique_ptr<ScriptRuntime> make(std::string_view body, const ScriptLimits& limits = {}) {
  auto runtime = ScriptRuntime::create(limits);
  HOTSET_CHECK(runtime.has_value());
  const auto loaded =
      (*runtime)->load("test.js", "globalThis.test = { run(x) { " + std::string(body) + " } };");
  EXPECT_TRUE(loaded) << loaded.error().message;
  EXPECT_TRUE((*runtime)->seal());
  return *std::move(runtime);
}

Result<std::string> run(std::string_view body, const ScriptLimits& limits = {}) {
  return make(body, limits)->call("test", "run", "");
}

TEST(ScriptRuntime, PassesStringsOfAnyText) {
  const auto runtime = make("return x + x;");
  for (const std::string text : {"", "a", "é😀", "\u0001\n", "z\uFDD0"}) {
    EXPECT_EQ(runtime->call("test", "run", text), text + text);
  }
  EXPECT_EQ(runtime->call("test", "run", std::string("a\0b", 3)), std::string("a\0ba\0b", 6));
  EXPECT_EQ(runtime->call("test", "run", "\xff"), "\uFFFD\uFFFD");
}

TEST(ScriptRuntime, EndsWhatRunsTooLong) {
  const SlowClock clock;
  for (const char* body :
       {"while (true) {}", "for (;;) { try { while (true) {} } catch {} }",
        "return /(a*)*b/.test('a'.repeat(100)) ? '' : ''",
        "return String([...'x'.repeat(1000)].sort(() => { while (true) {} }));"}) {
    const auto runtime = make(body, {.time_us = 20e6, .clock = &clock});
    const auto result = runtime->call("test", "run", "");
    ASSERT_FALSE(result) << body;
    EXPECT_EQ(result.error().code, ErrorCode::kCancelled);
    EXPECT_THAT(result.error().message, HasSubstr("still running after 20.0 s"));
    EXPECT_TRUE(runtime->is_spent());
  }
}

TEST(ScriptRuntime, RefusesMemoryBeyondTheLimit) {
  for (const char* body :
       {"const a = []; while (true) a.push('x'.repeat(1000) + a.length);",
        "let s = 'x'; while (true) s += s;", "return 'x'.repeat(2 ** 29);",
        "const m = new Map(); for (let i = 0; ; ++i) m.set(i, [i]);",
        "for (;;) { try { const a = []; while (true) a.push({}); } catch {} return 'fine'; }"}) {
    const auto runtime = make(body, {.memory = mib(16)});
    const auto result = runtime->call("test", "run", "");
    ASSERT_FALSE(result) << body;
    EXPECT_EQ(result.error().code, ErrorCode::kOutOfMemory) << result.error().message;
    EXPECT_THAT(result.error().message, HasSubstr("needs more"));
    EXPECT_TRUE(runtime->is_spent());
    EXPECT_LE(runtime->peak_memory(), mib(16));
  }
  EXPECT_FALSE(ScriptRuntime::create({.memory = {1000}}));
}

// What is only reachable from itself.
constexpr const char* kMakeCycles =
    "for (let i = 0; i < 20000; ++i) { const a = { text: 'x'.repeat(1000) + i }; a.self = a; } "
    "return '';";

TEST(ScriptRuntime, CollectsCyclesWhileAScriptRuns) {
  // Twenty times the limit, if it stayed.
  const auto runtime = make(kMakeCycles, {.memory = mib(4)});
  const auto result = runtime->call("test", "run", "");
  EXPECT_TRUE(result) << result.error().message;
}

TEST(ScriptRuntime, HoldsNoMoreAfterManyCalls) {
  const auto runtime = make("const a = { x }; a.self = a; if (x === '!') throw a; return x;");
  const Bytes before = runtime->used_memory();
  const std::string text(100000, 'x');
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(runtime->call("test", "run", text), text);
    EXPECT_FALSE(runtime->call("test", "run", "!"));
    ASSERT_LE(runtime->used_memory(), before + ScriptRuntime::kMaxGarbage) << i;
  }
}

TEST(ScriptRuntime, BoundsTheDepthOfCalls) {
  for (const char* body :
       {"const f = (n) => f(n + 1) + 1; return String(f(0));",
        "let a = []; for (let i = 0; i < 1e5; ++i) a = [a]; return JSON.stringify(a);",
        "return String(new RegExp('('.repeat(1e5) + ')'.repeat(1e5)));"}) {
    const auto result = run(body);
    ASSERT_FALSE(result) << body;
    EXPECT_THAT(result.error().code, testing::AnyOf(ErrorCode::kUnsupported, ErrorCode::kInternal))
        << result.error().message;
  }
  EXPECT_EQ(run("const f = (n) => f(n + 1); return String(f(0));").error().message,
            "nested too deeply");
}

TEST(ScriptRuntime, ReachesNothing) {
  for (const char* name : {"std", "os", "console", "print", "require", "process", "fetch", "Date",
                           "eval", "Function", "setTimeout", "performance", "WebAssembly", "Worker",
                           "bjson", "loadScript", "scriptArgs", "gc"}) {
    EXPECT_EQ(run(std::string("return typeof globalThis.") + name + ";"), "undefined") << name;
  }
  for (const char* body : {"return String((() => {}).constructor('return 1'));",
                           "return String((function* () {}).constructor('return 1'));",
                           "return String((async () => {}).constructor('return 1')());",
                           "return String([].map.constructor('return 1'));"}) {
    EXPECT_FALSE(run(body)) << body;
  }
  const auto runtime = make("return '';");
  EXPECT_FALSE(runtime->load("late.js", "import('fs')"));
  EXPECT_FALSE(ScriptRuntime::create({}).value()->load("import.js", "import * as os from 'os';"));
}

TEST(ScriptRuntime, ReportsExceptions) {
  const auto thrown = run("throw new Error('no: ' + 1);");
  ASSERT_FALSE(thrown);
  EXPECT_EQ(thrown.error().code, ErrorCode::kInternal);
  EXPECT_EQ(thrown.error().message, "Error: no: 1");
  EXPECT_FALSE(run("throw { toString() { throw 1; } };"));
  EXPECT_EQ(run("return 1;").error().message, "test.run: found no string");
  EXPECT_FALSE(run("return missing;"));
  const auto runtime = make("return x;");
  EXPECT_FALSE(runtime->call("nothing", "run", ""));
  EXPECT_FALSE(runtime->call("test", "nothing", ""));
  EXPECT_FALSE(runtime->is_spent());
  EXPECT_EQ(runtime->call("test", "run", "still works"), "still works");
}

TEST(ScriptRuntime, MayMoveBetweenThreads) {
  const auto runtime = make("const f = (n) => n === 0 ? x : f(n - 1); return f(100);");
  for (int i = 0; i < 5; ++i) {
    std::thread([&] { EXPECT_EQ(runtime->call("test", "run", "here"), "here"); }).join();
  }
}

}  // namespace
}  // namespace hotset::text
