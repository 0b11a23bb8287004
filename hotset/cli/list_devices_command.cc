#include "hotset/cli/list_devices_command.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <string_view>
#include <vector>

#include "hotset/base/printable.h"
#include "hotset/base/units.h"

namespace hotset::cli {
namespace {

constexpr size_t kColumns = 8;
using Row = std::array<std::string, kColumns>;

std::string_view yes_or_no(bool value) { return value ? "yes" : "no"; }

std::string_view overlap_name(device::Overlap overlap) {
  switch (overlap) {
    case device::Overlap::kYes:
      return "yes";
    case device::Overlap::kNo:
      return "no";
    case device::Overlap::kUntested:
      break;
  }
  return "untested";
}

Row row_of(const device::DeviceInfo& info) {
  std::string description = printable(info.description);
  if (info.shares_host_memory) description += " (shares host memory: needs no cache)";
  return {printable(info.name),
          to_string(info.memory_total),
          to_string(info.memory_free),
          std::string(yes_or_no(info.async_copies)),
          std::string(yes_or_no(info.events)),
          std::string(yes_or_no(info.pinned_memory)),
          std::string(overlap_name(info.overlap)),
          std::move(description)};
}

}  // namespace

std::string device_table(std::span<const device::DeviceInfo> devices) {
  std::vector<Row> rows;
  rows.push_back({"name", "memory", "free", "async", "events", "pinned", "overlap", "description"});
  for (const device::DeviceInfo& info : devices) rows.push_back(row_of(info));
  std::array<size_t, kColumns> widths{};
  for (const Row& row : rows) {
    for (size_t i = 0; i < kColumns; ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  if (devices.empty()) {
    text = "no GPU found; experts are computed by the CPU\n";
  } else {
    for (const Row& row : rows) {
      for (size_t i = 0; i + 1 < kColumns; ++i) text += fmt::format("{:<{}}  ", row[i], widths[i]);
      text += row.back() + "\n";
    }
    text += "overlap: whether copies run while the device computes, as tested just now\n";
  }
  text +=
      "\n"
      "emu: an emulated device on the CPU, for machines without a GPU and for tests\n"
      "     emu:mib=512,gbps=12,us=15,dev_gbps=200,cpu_gbps=20,clock=real|virtual\n";
  return text;
}

std::string cpu_text(std::string_view variant, std::span<const device::CpuVariant> variants,
                     const UsableCpus& cpus) {
  std::string text = fmt::format("CPU: {} to use, {}", cpus.n_cpus, cpus.n_cores);
  text += cpus.n_cores == 1 ? " core" : " cores";
  if (cpus.quota) text += fmt::format(" (a quota of {:.2f}, {})", *cpus.quota, cpus.quota_file);
  text += "\n";
  if (variants.empty()) return text;
  text += fmt::format("     ggml's build in use: {}\n     {} takes one of:", variant,
                      device::kCpuVariantVariable);
  for (const device::CpuVariant& one : variants) text += " " + one.name;
  return text + "\n";
}

Status list_devices_command() {
  HOTSET_TRY(const std::vector<device::DeviceInfo> devices, device::list_devices());
  fmt::print("{}\n{}", device_table(devices),
             cpu_text(device::cpu_variant(), device::cpu_variants(), usable_cpus()));
  return {};
}

}  // namespace hotset::cli
