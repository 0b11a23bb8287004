// The control groups that this process is in, as far as it can see them: where limits of CPU time
// and memory stand.
// Thread-safe: nothing is kept.
#ifndef HOTSET_BASE_CONTROL_GROUPS_H_
#define HOTSET_BASE_CONTROL_GROUPS_H_

#include <string>
#include <string_view>
#include <vector>

namespace hotset {

struct ControlGroup {
  bool is_v2 = false;
  std::string folder;  // begins with a slash; without the root that was given
};

// The process's groups that can limit by `controller` ("cpu", "memory"), of version 2 and 1, each
// with its parents, innermost first. `root` stands in front of /proc and of the folders; tests have
// files of their own there. What cannot be read is left out.
// Paths are plain texts: std::filesystem::path frees twice where memory is refused to it.
std::vector<ControlGroup> control_groups(std::string_view controller, const std::string& root = "");

}  // namespace hotset

#endif  // HOTSET_BASE_CONTROL_GROUPS_H_
