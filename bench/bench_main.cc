// The main function of the google-benchmark programs: refuses debug builds, and says what was
// measured: commit, compiler, flags, CPU.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <string>

namespace {

std::string commit() {
  const auto close = [](FILE* pipe) { pclose(pipe); };
  const std::unique_ptr<FILE, decltype(close)> pipe(
      popen("git -C '" HOTSET_SOURCE_DIR "' describe --always --dirty 2>/dev/null", "r"), close);
  char line[128] = {};
  if (pipe == nullptr || std::fgets(line, sizeof line, pipe.get()) == nullptr) return "unknown";
  std::string text = line;
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::string cpu() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

}  // namespace

int main(int argc, char** argv) {
#ifndef NDEBUG
  std::fprintf(stderr, "%s: this is a debug build, expected a release build\n", argv[0]);
  return 1;
#endif
  benchmark::AddCustomContext("commit", commit());
  benchmark::AddCustomContext("compiler", __VERSION__);
  benchmark::AddCustomContext("flags", HOTSET_FLAGS);
  benchmark::AddCustomContext("cpu", cpu());
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
