#include "hotset/measure/model_options.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "hotset/base/units.h"
#include "hotset/engine/weights/tensor_types.h"
#include "hotset/measure/thread_search.h"

namespace hotset::measure {
namespace {

template <typename T>
Result<T> choose(std::string_view flag, std::string_view value,
                 std::initializer_list<std::pair<std::string_view, T>> choices) {
  std::string names;
  for (const auto& [name, meaning] : choices) {
    if (name == value) return meaning;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
  }
  return make_error(ErrorCode::kInvalidArgument, "{}: found '{}', expected one of: {}", flag, value,
                    names);
}

Result<int64_t> parse_gpu_layers(const std::string& value) {
  if (value == "auto" || value == "all") return -1;
  int64_t n = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), n);
  if (error != std::errc() || end != value.data() + value.size() || n < 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--n-gpu-layers: found '{}', expected auto or a number from 0", value);
  }
  return n;
}

}  // namespace

Result<std::string> choose_device(const std::string& value) {
  if (value == "none" || value == "cpu" || value == "CPU") return std::string();
  if (value != "auto") return value;
  HOTSET_TRY(const std::vector<device::DeviceInfo> devices, device::list_devices());
  return devices.empty() ? std::string() : devices.front().name;
}

Result<engine::EngineOptions> engine_options(const ModelOptions& options) {
  engine::EngineOptions result;
  if (options.n_threads < 0 || options.n_threads > 512) {
    return make_error(ErrorCode::kInvalidArgument, "--threads: found {}, expected 0 to 512",
                      options.n_threads);
  }
  if (options.n_ctx < 0) {
    return make_error(ErrorCode::kInvalidArgument, "--ctx-size: found {}, expected at least 0",
                      options.n_ctx);
  }
  if (options.n_ubatch < 1 || options.n_ubatch > 1 << 16) {
    return make_error(ErrorCode::kInvalidArgument, "--ubatch-size: found {}, expected 1 to {}",
                      options.n_ubatch, 1 << 16);
  }
  warn_of_threads("--threads", options.n_threads);
  result.n_threads = options.n_threads;
  result.context.n_ctx = options.n_ctx;
  result.context.n_ubatch = options.n_ubatch;
  HOTSET_TRY(result.n_gpu_layers, parse_gpu_layers(options.n_gpu_layers));
  using engine::FlashAttention;
  HOTSET_TRY(result.context.flash_attention,
             choose<FlashAttention>("--flash-attn", options.flash_attention,
                                    {{"on", FlashAttention::kOn},
                                     {"off", FlashAttention::kOff},
                                     {"auto", FlashAttention::kAuto}}));
  HOTSET_TRY(result.context.key_type, engine::parse_type("--cache-type-k", options.key_type));
  HOTSET_TRY(result.context.value_type, engine::parse_type("--cache-type-v", options.value_type));
  using engine::LoadMode;
  HOTSET_TRY(result.load.load_mode, choose<LoadMode>("--load-mode", options.load_mode,
                                                     {{"mmap", LoadMode::kMmap},
                                                      {"pinned", LoadMode::kPinned},
                                                      {"auto", LoadMode::kAuto}}));
  HOTSET_TRY(result.load.repack,
             choose<bool>("--repack", options.repack, {{"auto", true}, {"off", false}}));
  HOTSET_RETURN_IF_ERROR(apply(options.cache, result));
  return result;
}

}  // namespace hotset::measure
