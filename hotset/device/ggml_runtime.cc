#include "hotset/device/ggml_runtime.h"

#include <ggml.h>

#include <cstdlib>
#include <string>

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
  return {};
}

}  // namespace

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
