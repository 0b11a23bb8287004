#include "hotset/engine/run/engine_settings.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "hotset/engine/experts/cache_settings.h"

namespace hotset::engine {
namespace {

using Options = EngineOptions;

Settings<Options> placement_settings() {
  return {
      setting<Options>(
          {.name = "n-gpu-layers",
           .help = "-ngl: how many of the last layers the device computes, the head counted as "
                   "one more; auto: all, as far as they fit",
           .range = from(0),
           .auto_words = {"auto", "all"}},
          [](auto& o) -> auto& { return o.n_gpu_layers; }),
      setting<Options>({.name = "threads",
                        .letters = "t",
                        .help = "CPU threads; 0: one per core that may be used",
                        .range = SettingRange{0, 512}},
                       [](auto& o) -> auto& { return o.n_threads; }),
  };
}

Settings<Options> context_settings() {
  const std::vector<std::pair<std::string, ggml_type>> kTypes = {
      {"f32", GGML_TYPE_F32}, {"f16", GGML_TYPE_F16}, {"q8_0", GGML_TYPE_Q8_0}};
  return {
      setting<Options>(
          {.name = "ctx-size",
           .letters = "c",
           .help = "Positions of context, for all sequences of a server together; 0: for each "
                   "what the model was trained with, as far as it takes a quarter of the memory "
                   "left",
           .range = from(0)},
          [](auto& o) -> auto& { return o.context.n_ctx; }),
      setting<Options>({.name = "ubatch-size",
                        .help = "-ub: tokens of a prompt computed together",
                        .range = SettingRange{1, 1 << 16}},
                       [](auto& o) -> auto& { return o.context.n_ubatch; }),
      word_setting<Options, FlashAttention>(
          {.name = "flash-attn", .help = "-fa: flash attention: on, off or auto"},
          {{"on", FlashAttention::kOn},
           {"off", FlashAttention::kOff},
           {"auto", FlashAttention::kAuto}},
          [](auto& o) -> auto& { return o.context.flash_attention; }),
      word_setting<Options, ggml_type>(
          {.name = "cache-type-k", .help = "-ctk: type of cached keys: f32, f16 or q8_0"}, kTypes,
          [](auto& o) -> auto& { return o.context.key_type; }),
      word_setting<Options, ggml_type>(
          {.name = "cache-type-v",
           .help = "-ctv: type of cached values: f32, f16 or, with flash attention, q8_0"},
          kTypes, [](auto& o) -> auto& { return o.context.value_type; }),
  };
}

Settings<Options> load_settings() {
  return {
      word_setting<Options, LoadMode>(
          {.name = "load-mode",
           .help = "Weights used from the file in place (mmap), copied into locked RAM (pinned), "
                   "or whichever suits (auto)"},
          {{"mmap", LoadMode::kMmap}, {"pinned", LoadMode::kPinned}, {"auto", LoadMode::kAuto}},
          [](auto& o) -> auto& { return o.load.load_mode; }),
      setting<Options>(
          {.name = "repack",
           .help = "Rearrange weights for the CPU's kernels: auto or off (off: same rounding as "
                   "on every other lane)",
           .words = {"auto", "off"}},
          [](auto& o) -> auto& { return o.load.repack; }),
      setting<Options>({.name = "moe-cache-mib",
                        .help = "Device memory for experts, MiB; auto: what is left; 0: no cache",
                        .unit = "MiB",
                        .range = SettingRange{0, kMostMib},
                        .auto_words = {"auto"}},
                       [](auto& o) -> auto& { return o.cache_bytes; }),
  };
}

Settings<Options> make_settings() {
  Settings<Options> table;
  const auto add = [&](Settings<Options> more) {
    std::ranges::move(more, std::back_inserter(table));
  };
  add(placement_settings());
  add(context_settings());
  add(load_settings());
  add(settings_of_part<Options>(cache_settings(), [](auto& o) -> auto& { return o.cache; }));
  add({setting<Options>({.name = "memory-headroom-mib",
                         .help = "Device memory that stays free, MiB; auto: 5%, at least 512",
                         .unit = "MiB",
                         .range = SettingRange{0, kMostMib},
                         .auto_words = {"auto"}},
                        [](auto& o) -> auto& { return o.headroom; })});
  return table;
}

}  // namespace

const Settings<EngineOptions>& engine_settings() {
  static const Settings<Options> table = make_settings();
  return table;
}

}  // namespace hotset::engine
