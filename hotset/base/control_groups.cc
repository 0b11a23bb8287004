#include "hotset/base/control_groups.h"

#include <algorithm>
#include <fstream>
#include <ranges>
#include <string>
#include <utility>

namespace hotset {
namespace {

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (const auto part : std::views::split(text, separator)) {
    parts.emplace_back(part.begin(), part.end());
  }
  return parts;
}

// mountinfo writes spaces, tabs, line ends and backslashes of paths as \040 and the like.
std::string unescaped(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto is_octal = [&](size_t at) { return text[at] >= '0' && text[at] <= '7'; };
    if (text[i] == '\\' && i + 3 < text.size() && is_octal(i + 1) && is_octal(i + 2) &&
        is_octal(i + 3)) {
      result += static_cast<char>(((text[i + 1] - '0') << 6) | ((text[i + 2] - '0') << 3) |
                                  (text[i + 3] - '0'));
      i += 3;
    } else {
      result += text[i];
    }
  }
  return result;
}

// A mounted hierarchy of control groups.
struct Hierarchy {
  bool is_v2 = false;
  std::string mount_root;  // the group that is seen at mount_point
  std::string mount_point;
};

std::vector<Hierarchy> hierarchies(const std::string& root, std::string_view controller) {
  std::vector<Hierarchy> found;
  std::ifstream in(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(in, line);) {
    // ID PARENT DEVICE ROOT MOUNT_POINT OPTIONS [OPTIONAL...] - TYPE SOURCE SUPER_OPTIONS
    const std::vector<std::string> fields = split(line, ' ');
    const auto dash = std::ranges::find(fields, "-");
    if (fields.size() < 6 || fields.end() - dash < 4) continue;
    const std::string& type = dash[1];
    const bool is_v2 = type == "cgroup2";
    if (!is_v2 && (type != "cgroup" || !std::ranges::contains(split(dash[3], ','), controller))) {
      continue;
    }
    found.push_back(
        {.is_v2 = is_v2, .mount_root = unescaped(fields[3]), .mount_point = unescaped(fields[4])});
  }
  return found;
}

// The process's group in a hierarchy, as /proc/self/cgroup names it; empty if it does not.
std::string own_group(const std::string& root, std::string_view controller, bool is_v2) {
  std::ifstream in(root + "/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    // ID:CONTROLLERS:PATH, where the path may have colons; version 2 is 0::PATH.
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_it = is_v2 ? controllers.empty() && line.starts_with("0:")
                             : std::ranges::contains(split(controllers, ','), controller);
    if (is_it) return line.substr(second + 1);
  }
  return {};
}

// The folders of the process's group and its parents, as far as they can be seen: innermost first.
// A container often sees its own group, or the one of its namespace, as the top of the hierarchy.
std::vector<std::string> visible_groups(const Hierarchy& hierarchy, std::string_view group) {
  std::vector<std::string> folders;
  const std::string top = hierarchy.mount_root == "/" ? "" : hierarchy.mount_root;
  if (group.starts_with(top + "/") && !group.contains("/../")) {
    group.remove_prefix(top.size());
    for (; group.size() > 1; group = group.substr(0, group.rfind('/'))) {
      folders.push_back(hierarchy.mount_point + std::string(group));
    }
  }
  folders.push_back(hierarchy.mount_point);
  return folders;
}

}  // namespace

std::vector<ControlGroup> control_groups(std::string_view controller, const std::string& root) {
  std::vector<ControlGroup> groups;
  for (const Hierarchy& hierarchy : hierarchies(root, controller)) {
    const std::string own = own_group(root, controller, hierarchy.is_v2);
    for (std::string& folder : visible_groups(hierarchy, own)) {
      groups.push_back({.is_v2 = hierarchy.is_v2, .folder = std::move(folder)});
    }
  }
  return groups;
}

}  // namespace hotset
