// The tables of what users may say, whatever reads them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "hotset/base/setting_testing.h"
#include "hotset/engine/experts/cache_settings.h"
#include "hotset/engine/run/engine_settings.h"
#include "hotset/engine/run/sampler_settings.h"

namespace hotset::engine {
namespace {

using testing::HasSubstr;

template <typename Options>
void expect_well_made(const Settings<Options>& table) {
  test::expect_defaults_are_read_again(table);
  for (const Setting<Options>& one : table) {
    EXPECT_FALSE(one.check("?")) << one.info.name << " takes anything";
  }
}

TEST(SettingTables, DefaultsAreReadAgain) {
  expect_well_made(sampler_settings());
  expect_well_made(cache_settings());
  expect_well_made(engine_settings());
}

TEST(SettingTables, SetWhatTheySay) {
  EngineOptions o;
  const auto set = [&](std::string_view name, std::string_view value) {
    const Status status = set_setting(engine_settings(), name, value, o);
    EXPECT_TRUE(status) << status.error().message;
  };
  set("n-gpu-layers", "3");
  EXPECT_EQ(o.n_gpu_layers, 3);
  set("n-gpu-layers", "all");
  EXPECT_EQ(o.n_gpu_layers, std::nullopt);
  set("flash-attn", "OFF");
  EXPECT_EQ(o.context.flash_attention, FlashAttention::kOff);
  set("cache-type-k", "q8_0");
  set("cache-type-v", "f32");
  EXPECT_EQ(o.context.key_type, GGML_TYPE_Q8_0);
  EXPECT_EQ(o.context.value_type, GGML_TYPE_F32);
  set("load-mode", "pinned");
  EXPECT_EQ(o.load.load_mode, LoadMode::kPinned);
  set("repack", "off");
  EXPECT_FALSE(o.load.repack);
  set("moe-cache-mib", "0.5");
  EXPECT_EQ(o.cache_bytes, Bytes{512 << 10});
  set("memory-headroom-mib", "3");
  EXPECT_EQ(o.headroom, mib(3));
  set("moe-cache-cpu-share", "0.25");
  set("moe-cache-batch", "7");
  set("moe-cache-fills", "off");
  set("moe-cache-policy", "crf:8");
  set("moe-cache-rates", "typical");
  const SettingRef policy = find_setting(engine_settings(), "moe-cache-policy").of(o);
  EXPECT_EQ(policy.text(), "crf:8");
  EXPECT_EQ(find_setting(engine_settings(), "moe-cache-rates").text(o), "typical");
  EXPECT_EQ(find_setting(engine_settings(), "moe-cache-fills").text(o), "off");
}

TEST(SettingTables, PoliciesThatCannotRunACacheAreRefused) {
  EngineOptions o;
  const auto why_not = [&](std::string_view name) {
    const Status status = set_setting(engine_settings(), "moe-cache-policy", name, o);
    return status ? std::string() : status.error().message;
  };
  EXPECT_THAT(why_not("belady"), HasSubstr("--moe-cache-policy: found belady, expected one of: "));
  EXPECT_THAT(why_not("static"), HasSubstr("expected one of: class_lru, crf, "));
  EXPECT_THAT(why_not("crf:0"), HasSubstr("half-life"));
}

TEST(SettingTables, EveryFieldOfARequestIsOneSettings) {
  std::set<std::string> fields;
  for (const auto& one : sampler_settings()) {
    EXPECT_FALSE(one.info.fields.empty()) << one.info.name;
    for (const std::string& field : one.info.fields) {
      EXPECT_TRUE(fields.insert(field).second) << field;
    }
  }
}

}  // namespace
}  // namespace hotset::engine
