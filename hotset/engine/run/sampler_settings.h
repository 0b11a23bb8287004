// What a user may say of sampling (sampler.h), by flag and in requests.
// Thread-safe: constant data.
#ifndef HOTSET_ENGINE_RUN_SAMPLER_SETTINGS_H_
#define HOTSET_ENGINE_RUN_SAMPLER_SETTINGS_H_

#include "hotset/base/setting.h"
#include "hotset/engine/run/sampler.h"

namespace hotset::engine {

// In the order in which they change the logits. All but logit bias and seed.
const Settings<SamplerOptions>& sampler_settings();

// Tokens of a text or reply: an int32_t, -1: no limit.
const SettingInfo& predict_setting();

// What is added to a token's logit, a float, where it is finite.
const SettingInfo& logit_bias_setting();

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_RUN_SAMPLER_SETTINGS_H_
