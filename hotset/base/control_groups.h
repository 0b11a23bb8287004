// The control groups that this process is in, as far as it can see them: where limits of CPU time
// and memory stand.
// Thread-safe: nothing is kept.
#ifndef HOTSET_BASE_CONTROL_GROUPS_H_
#define HOTSET_BASE_CONTROL_GROUPS_H_

#include <filesystem>
#include <string_view>
#include <vector>

namespace hotset {

struct ControlGroup {
  bool is_v2 = false;
  std::filesystem::path folder;  // without the root that was given
};

// The process's groups that can limit by `controller` ("cpu", "memory"), of version 2 and 1, each
// with its parents, innermost first. `root` stands in front of /proc and of the folders; tests have
// files of their own there. What cannot be read is left out.
std::vector<ControlGroup> control_groups(std::string_view controller,
                                         const std::filesystem::path& root = "/");

// A path of the system, below `root`.
std::filesystem::path below(const std::filesystem::path& root, const std::filesystem::path& path);

}  // namespace hotset

#endif  // HOTSET_BASE_CONTROL_GROUPS_H_
