// Where tests find their files.
#ifndef TESTS_TEST_FILES_H_
#define TESTS_TEST_FILES_H_

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "hotset/base/error.h"
#include "hotset/base/temporary_folder.h"

namespace hotset::test {

// assets/ of the repository; always there.
inline std::filesystem::path assets_dir() {
  const char* path = std::getenv("HOTSET_ASSETS_DIR");
  HOTSET_CHECK(path != nullptr);
  return path;
}

inline std::filesystem::path demo_model() { return assets_dir() / "demo-54m-moe.gguf"; }

// A folder of shared/; empty if it is absent, which the test must say and skip.
inline std::filesystem::path shared_dir(const char* folder) {
  const char* path = std::getenv("HOTSET_SHARED_DIR");
  if (path == nullptr) return {};
  const std::filesystem::path found = std::filesystem::path(path) / folder;
  return std::filesystem::is_directory(found) ? found : std::filesystem::path();
}

}  // namespace hotset::test

#endif  // TESTS_TEST_FILES_H_
