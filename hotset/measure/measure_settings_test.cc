// The tables of what users may say to the commands that measure, and to all that compute.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "hotset/measure/bench_settings.h"
#include "hotset/measure/model_options.h"
#include "hotset/measure/tune_settings.h"

namespace hotset::measure {
namespace {

using testing::HasSubstr;

template <typename Options>
void expect_defaults_are_read_again(const Settings<Options>& table) {
  const Options defaults;
  std::set<std::string> names;
  for (const Setting<Options>& one : table) {
    SCOPED_TRACE(one.info.name);
    EXPECT_TRUE(names.insert(one.info.name).second);
    EXPECT_FALSE(one.info.help.empty());
    Options options;
    ASSERT_TRUE(one.set(options, one.text(defaults))) << one.text(defaults);
    EXPECT_EQ(one.text(options), one.text(defaults));
  }
  EXPECT_TRUE(check_settings(table, defaults));
}

TEST(MeasureSettings, DefaultsAreReadAgain) {
  expect_defaults_are_read_again(model_settings());
  expect_defaults_are_read_again(bench_settings());
  expect_defaults_are_read_again(tune_settings());
}

TEST(ModelOptions, AreCheckedHoweverTheyWereSet) {
  ModelOptions options;
  EXPECT_TRUE(engine_options(options));
  EXPECT_EQ(engine_options(options)->cache_bytes, std::nullopt) << "not what the plan leaves";
  options.engine.context.n_ctx = -1;
  EXPECT_THAT(engine_options(options).error().message, HasSubstr("--ctx-size: found -1, expected"));
  options.engine = {.n_threads = 513};
  EXPECT_EQ(engine_options(options).error().message, "--threads: found 513, expected 0 to 512");
}

}  // namespace
}  // namespace hotset::measure
