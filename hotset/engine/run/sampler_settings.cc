#include "hotset/engine/run/sampler_settings.h"

namespace hotset::engine {
namespace {

using Options = SamplerOptions;

Settings<Options> make_settings() {
  constexpr SettingRange kPenalty = {-100, 100};
  return {
      setting<Options>(
          {.name = "repeat-penalty",
           .help = "Then: divides positive logits of tokens seen lately, multiplies negative "
                   "ones; 1: off",
           .range = SettingRange{0, 100, true},
           // The first is the name that most other servers have for it.
           .fields = {"repetition_penalty", "repeat_penalty"}},
          [](auto& o) -> auto& { return o.repeat_penalty; }),
      setting<Options>({.name = "frequency-penalty",
                        .help = "Then: subtracted for each time a token was seen lately",
                        .range = kPenalty,
                        .fields = {"frequency_penalty"}},
                       [](auto& o) -> auto& { return o.frequency_penalty; }),
      setting<Options>({.name = "presence-penalty",
                        .help = "Then: subtracted if a token was seen lately",
                        .range = kPenalty,
                        .fields = {"presence_penalty"}},
                       [](auto& o) -> auto& { return o.presence_penalty; }),
      setting<Options>({.name = "repeat-last-n",
                        .help = "How many tokens, prompt included, are lately; 0: none, -1: all",
                        .range = SettingRange{-1, 1 << 24},
                        .fields = {"repeat_last_n"}},
                       [](auto& o) -> auto& { return o.repeat_last_n; }),
      setting<Options>({.name = "top-k",
                        .help = "Then: sample among the k best tokens; 0 or -1: all",
                        .range = from(-1),
                        .fields = {"top_k"}},
                       [](auto& o) -> auto& { return o.top_k; }),
      setting<Options>(
          {.name = "top-p",
           .help = "Then: among the best tokens that reach this probability together; 1: all",
           .range = SettingRange{0, 1},
           .fields = {"top_p"}},
          [](auto& o) -> auto& { return o.top_p; }),
      setting<Options>(
          {.name = "min-p",
           .help = "Then: among tokens with this share of the best one's probability; 0: all",
           .range = SettingRange{0, 1},
           .fields = {"min_p"}},
          [](auto& o) -> auto& { return o.min_p; }),
      setting<Options>({.name = "temp",
                        .help = "Last: temperature; 0: always the best token after the penalties",
                        .range = SettingRange{0, 100},
                        .fields = {"temperature"}},
                       [](auto& o) -> auto& { return o.temperature; }),
  };
}

}  // namespace

const Settings<SamplerOptions>& sampler_settings() {
  static const Settings<Options> table = make_settings();
  return table;
}

const SettingInfo& logit_bias_setting() {
  // So large that sums of biases and logits stay finite.
  static const SettingInfo info = {.name = "logit-bias", .range = SettingRange{-1e6, 1e6}};
  return info;
}

const SettingInfo& predict_setting() {
  static const SettingInfo info = {
      .name = "predict",
      .letters = "n",
      .help = "Tokens to generate; -1: until the model ends its text or the context is full",
      .range = from(-1),
      .fields = {"n_predict", "max_tokens"}};
  return info;
}

}  // namespace hotset::engine
