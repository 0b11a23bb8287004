// The tables of what users may say to the commands that measure, and to all that compute.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hotset/base/setting_testing.h"
#include "hotset/measure/bench_settings.h"
#include "hotset/measure/model_options.h"
#include "hotset/measure/tune_settings.h"

namespace hotset::measure {
namespace {

using testing::HasSubstr;

TEST(MeasureSettings, DefaultsAreReadAgain) {
  test::expect_defaults_are_read_again(model_settings());
  test::expect_defaults_are_read_again(bench_settings());
  test::expect_defaults_are_read_again(tune_settings());
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
