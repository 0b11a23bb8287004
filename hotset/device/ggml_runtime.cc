#include "hotset/device/ggml_runtime.h"

#include <dlfcn.h>
#include <ggml.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "hotset/base/log.h"

namespace hotset::device {
namespace {

// ggml logs in pieces; a line is passed on when it is complete. Its chatter is for debugging.
void forward_log(ggml_log_level level, const char* text, void*) {
  thread_local std::string line;
  thread_local LogLevel line_level = LogLevel::kDebug;
  if (level == GGML_LOG_LEVEL_WARN) line_level = LogLevel::kWarning;
  if (level == GGML_LOG_LEVEL_ERROR) line_level = LogLevel::kError;
  if (level == GGML_LOG_LEVEL_INFO || level == GGML_LOG_LEVEL_DEBUG) line_level = LogLevel::kDebug;
  line += text;
  if (!line.ends_with('\n')) return;
  line.pop_back();
  if (!line.empty()) log_message(line_level, "ggml: " + line);
  line.clear();
}

namespace fs = std::filesystem;

constexpr std::string_view kLibraryBeginning = "libggml-cpu-";
constexpr std::string_view kLibraryEnding = ".so";

// The file that the CPU backend was loaded from; empty if it is not known.
fs::path cpu_library() {
  const auto function =
      proc_address<ggml_backend_set_n_threads_t>(cpu_device(), "ggml_backend_set_n_threads");
  Dl_info info;
  if (function == nullptr || dladdr(reinterpret_cast<void*>(function), &info) == 0) return {};
  return info.dli_fname;
}

// "haswell" of libggml-cpu-haswell.so; empty for other names.
std::string variant_name(const fs::path& library) {
  const std::string file = library.filename().string();
  if (!file.starts_with(kLibraryBeginning) || !file.ends_with(kLibraryEnding)) return {};
  return file.substr(kLibraryBeginning.size(),
                     file.size() - kLibraryBeginning.size() - kLibraryEnding.size());
}

// What the library says of itself on this machine; 0: it cannot be executed here.
int variant_score(const fs::path& library) {
  const std::unique_ptr<void, int (*)(void*)> handle(dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL),
                                                     dlclose);
  if (!handle) return 0;
  const auto score = reinterpret_cast<int (*)()>(dlsym(handle.get(), "ggml_backend_score"));
  return score == nullptr ? 0 : score();
}

Status use_variant(const std::string& name) {
  const std::vector<CpuVariant> variants = cpu_variants();
  const auto chosen = std::ranges::find(variants, name, &CpuVariant::name);
  if (chosen == variants.end()) {
    std::string names;
    for (const CpuVariant& variant : variants) {
      names += (names.empty() ? "" : ", ") + variant.name;
    }
    return make_error(ErrorCode::kInvalidArgument, "{}: found '{}', expected {}",
                      kCpuVariantVariable, name,
                      names.empty() ? "none: this ggml was built for one kind of CPU"
                                    : "one that this CPU can execute: " + names);
  }
  if (cpu_variant() == name) return {};
  // Not both: names of devices and buffer types would stand for two.
  ggml_backend_unload(ggml_backend_dev_backend_reg(cpu_device()));
  if (ggml_backend_load(chosen->path.c_str()) == nullptr ||
      ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU) == nullptr) {
    return make_error(ErrorCode::kDevice, "{}: {} cannot be loaded", kCpuVariantVariable,
                      chosen->path.string());
  }
  return {};
}

Status init_once() {
  ggml_log_set(forward_log, nullptr);
  // Vulkan's copies overlap with compute only on a queue of their own, which ggml uses on AMD and
  // where this is set before the backend is loaded. The user's own setting stays.
  setenv("GGML_VK_ASYNC_USE_TRANSFER_QUEUE", "1", /*overwrite=*/0);
  ggml_backend_load_all();
  if (ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU) == nullptr) {
    return make_error(ErrorCode::kDevice,
                      "ggml found no CPU backend, expected libggml-cpu-*.so beside libggml.so: run "
                      "scripts/setup");
  }
  const char* variant = std::getenv(kCpuVariantVariable);
  if (variant != nullptr && *variant != '\0') return use_variant(variant);
  return {};
}

}  // namespace

std::vector<CpuVariant> cpu_variants() {
  std::vector<CpuVariant> variants;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(cpu_library().parent_path(), ignored)) {
    const std::string name = variant_name(entry.path());
    const int score = name.empty() ? 0 : variant_score(entry.path());
    if (score > 0) variants.push_back({.name = name, .score = score, .path = entry.path()});
  }
  std::ranges::sort(variants, [](const CpuVariant& a, const CpuVariant& b) {
    return a.score != b.score ? a.score > b.score : a.name < b.name;
  });
  return variants;
}

std::string cpu_variant() { return variant_name(cpu_library()); }

Status init_ggml() {
  static const Status status = init_once();
  return status;
}

ggml_backend_dev_t cpu_device() {
  ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  HOTSET_CHECK(device != nullptr);
  return device;
}

}  // namespace hotset::device
