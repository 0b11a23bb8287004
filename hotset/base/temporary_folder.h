// A folder for the files of a test, which goes away with the object.
// Thread-compatible.
#ifndef HOTSET_BASE_TEMPORARY_FOLDER_H_
#define HOTSET_BASE_TEMPORARY_FOLDER_H_

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "hotset/base/error.h"

namespace hotset::test {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "hotset-test-XXXXXX").string();
    HOTSET_CHECK(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace hotset::test

#endif  // HOTSET_BASE_TEMPORARY_FOLDER_H_
