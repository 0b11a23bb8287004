// Runs a fuzz target's entry point as a plain test: over every file of its corpus, and over a
// fixed number of seeded mutations and truncations of each, so that a build without libFuzzer
// still feeds the readers rubbish.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "hotset/base/random.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n_bytes);

namespace {

constexpr int kMutationsPerFile = 200;
constexpr uint64_t kSeed = 20261129;

std::vector<uint8_t> read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::vector<uint8_t> mutate(std::vector<uint8_t> bytes, hotset::Random& random) {
  if (bytes.empty()) return bytes;
  if (random.below(4) == 0) bytes.resize(random.below(bytes.size()));
  const uint64_t n_edits = 1 + random.below(4);
  for (uint64_t i = 0; i < n_edits && !bytes.empty(); ++i) {
    bytes[random.below(bytes.size())] = static_cast<uint8_t>(random.next_u64());
  }
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 || !std::filesystem::is_directory(argv[1])) {
    std::fprintf(stderr, "usage: %s CORPUS_DIRECTORY\n", argv[0]);
    return 2;
  }
  hotset::Random random(kSeed);
  size_t n_files = 0;
  LLVMFuzzerTestOneInput(nullptr, 0);
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
    const std::vector<uint8_t> bytes = read_file(entry.path());
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
    for (int i = 0; i < kMutationsPerFile; ++i) {
      const std::vector<uint8_t> mutated = mutate(bytes, random);
      LLVMFuzzerTestOneInput(mutated.data(), mutated.size());
    }
    ++n_files;
  }
  std::printf("%zu corpus files, %d mutations each, seed %llu\n", n_files, kMutationsPerFile,
              static_cast<unsigned long long>(kSeed));
  return n_files > 0 ? 0 : 1;
}
