#include "hotset/base/setting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace hotset {
namespace {

using testing::ElementsAre;

enum class Colour { kRed, kGreen };

struct Part {
  std::optional<double> share = {};
  std::optional<int32_t> batch = 7;
};

struct Options {
  int32_t n_threads = 4;
  uint64_t seed = std::numeric_limits<uint64_t>::max();
  float top_p = 0.95F;
  float penalty = 1;
  double rate = 0.1;
  bool fills = true;
  bool json = false;
  Bytes memory = mib(64);
  std::optional<Bytes> cache = {};
  std::string name = "a";
  Colour colour = Colour::kGreen;
  Part part = {};
};

SettingResult<void> check_name(std::string_view name) {
  if (name == "bad") {
    return std::unexpected(SettingError{.expected = "a, b", .detail = "it is bad"});
  }
  if (name == "a" || name == "b") return {};
  return std::unexpected(SettingError{.expected = "one of: a, b"});
}

const Settings<Options>& table() {
  static const Settings<Options> all = [] {
    const Settings<Part> part = {
        setting<Part>({.name = "share", .range = SettingRange{0, 1}, .auto_words = {"auto", "all"}},
                      [](auto& o) -> auto& { return o.share; }),
        setting<Part>({.name = "batch", .range = from(1), .auto_words = {"auto"}},
                      [](auto& o) -> auto& { return o.batch; })};
    Settings<Options> result = {
        setting<Options>({.name = "threads", .range = SettingRange{0, 512}},
                         [](auto& o) -> auto& { return o.n_threads; }),
        setting<Options>({.name = "seed"}, [](auto& o) -> auto& { return o.seed; }),
        setting<Options>({.name = "top-p", .range = SettingRange{0, 1}},
                         [](auto& o) -> auto& { return o.top_p; }),
        setting<Options>({.name = "penalty", .range = SettingRange{0, 100, true}},
                         [](auto& o) -> auto& { return o.penalty; }),
        setting<Options>({.name = "rate"}, [](auto& o) -> auto& { return o.rate; }),
        setting<Options>({.name = "fills", .words = {"on", "off"}},
                         [](auto& o) -> auto& { return o.fills; }),
        setting<Options>({.name = "json"}, [](auto& o) -> auto& { return o.json; }),
        setting<Options>({.name = "memory-mib", .range = SettingRange{0, kMostMib}},
                         [](auto& o) -> auto& { return o.memory; }),
        setting<Options>(
            {.name = "cache-mib", .range = SettingRange{0, kMostMib}, .auto_words = {"auto"}},
            [](auto& o) -> auto& { return o.cache; }),
        setting<Options>({.name = "name", .check = check_name},
                         [](auto& o) -> auto& { return o.name; }),
        word_setting<Options, Colour>({.name = "colour"},
                                      {{"red", Colour::kRed}, {"green", Colour::kGreen}},
                                      [](auto& o) -> auto& { return o.colour; })};
    for (auto& one : settings_of_part<Options>(part, [](auto& o) -> auto& { return o.part; })) {
      result.push_back(std::move(one));
    }
    return result;
  }();
  return all;
}

// What a setting holds once it was set; its complaint if it was not.
std::string after(std::string_view name, const SettingInput& input) {
  Options options;
  const Setting<Options>& one = find_setting(table(), name);
  const std::string before = one.text(options);
  const auto set = one.set(options, input);
  EXPECT_EQ(set.has_value(), one.check(input).has_value()) << name;
  if (set) return one.text(options);
  EXPECT_EQ(one.text(options), before) << "a refused value changed " << name;
  return set.error().message("x", "y");
}

TEST(Setting, ReadsWhatItPrints) {
  const Options defaults;
  for (const Setting<Options>& one : table()) {
    SCOPED_TRACE(one.info.name);
    Options other{.n_threads = 1,
                  .seed = 2,
                  .top_p = 0,
                  .penalty = 3,
                  .rate = 4,
                  .fills = false,
                  .json = true,
                  .memory = {},
                  .cache = mib(1),
                  .name = "b",
                  .colour = Colour::kRed,
                  .part = {.share = 0.5, .batch = {}}};
    EXPECT_NE(one.text(other), one.text(defaults));
    ASSERT_TRUE(one.set(other, one.text(defaults)));
    EXPECT_EQ(one.text(other), one.text(defaults));
    EXPECT_TRUE(one.check_value(defaults));
  }
  Options options;
  EXPECT_TRUE(set_setting(table(), "rate", "0.1", options));
  EXPECT_EQ(options.rate, 0.1);  // to the last bit
  EXPECT_TRUE(set_setting(table(), "top-p", find_setting(table(), "top-p").text({}), options));
  EXPECT_EQ(options.top_p, 0.95F);
}

TEST(Setting, RangesIncludeTheirEnds) {
  EXPECT_EQ(after("threads", "0"), "0");
  EXPECT_EQ(after("threads", "512"), "512");
  EXPECT_EQ(after("threads", "513"), "x: found y, expected 0 to 512");
  EXPECT_EQ(after("threads", "-1"), "x: found y, expected 0 to 512");
  EXPECT_EQ(after("top-p", "1"), "1");
  EXPECT_EQ(after("top-p", "1.0000001"), "x: found y, expected 0 to 1");
  EXPECT_EQ(after("penalty", "0"), "x: found y, expected more than 0, at most 100");
  EXPECT_EQ(after("penalty", "1e-300"), "x: found y, expected more than 0, at most 100")
      << "a float makes 0 of it";
  EXPECT_EQ(after("penalty", "1e-30"), "1e-30");
  EXPECT_EQ(after("memory-mib", "67108865"), "x: found y, expected 0 to 67108864");
}

TEST(Setting, TextsAreReadToTheirEnd) {
  for (const char* text : {"", " ", "5x", "x5", "0x5", "1.5", "1e2", " 5", "5 ", "--5", "+-5",
                           "1,5", "99999999999", "99999999999999999999999", "nan", "inf"}) {
    EXPECT_EQ(after("threads", text), "x: found y, expected 0 to 512") << text;
  }
  EXPECT_EQ(after("threads", "+5"), "5");
  EXPECT_EQ(after("threads", "007"), "7");
  for (const char* text : {"", "nan", "-nan", "inf", "-inf", "0.5x", "warm", "1e999"}) {
    EXPECT_EQ(after("top-p", text), "x: found y, expected 0 to 1") << text;
  }
  EXPECT_EQ(after("top-p", ".5"), "0.5");
  EXPECT_EQ(after("top-p", "5e-1"), "0.5");
}

TEST(Setting, WholeNumbersKeepAllTheirDigits) {
  EXPECT_EQ(after("seed", "18446744073709551615"), "18446744073709551615");
  EXPECT_EQ(after("seed", "9007199254740993"), "9007199254740993");
  EXPECT_EQ(after("seed", "18446744073709551616"), "x: found y, expected a whole number from 0");
  EXPECT_EQ(after("seed", "-1"), "x: found y, expected a whole number from 0");
}

TEST(Setting, NumbersAreReadFromJsonAsWell) {
  EXPECT_EQ(after("threads", 5.0), "5");
  EXPECT_EQ(after("threads", 5.5), "x: found y, expected a whole number from 0 to 512");
  for (const double number : {-1.0, 513.0, 1e300, -1e300, HUGE_VAL, std::nan("")}) {
    EXPECT_EQ(after("threads", number), "x: found y, expected 0 to 512") << number;
  }
  EXPECT_EQ(after("threads", true), "x: found y, expected a whole number from 0 to 512");
  EXPECT_EQ(after("top-p", 0.25), "0.25");
  EXPECT_EQ(after("top-p", 1.5), "x: found y, expected 0 to 1");
  EXPECT_EQ(after("top-p", std::nan("")), "x: found y, expected 0 to 1");
  EXPECT_EQ(after("top-p", true), "x: found y, expected a number from 0 to 1");
  EXPECT_EQ(after("name", 1.0), "x: found y, expected a text");
  EXPECT_EQ(after("fills", false), "off");
  EXPECT_EQ(after("fills", 0.0), "x: found y, expected one of: on, off");
}

TEST(Setting, AutoIsNone) {
  EXPECT_EQ(after("share", "auto"), "auto");
  EXPECT_EQ(after("share", "AUTO"), "auto");
  EXPECT_EQ(after("share", "all"), "auto");
  EXPECT_EQ(after("batch", "auto"), "auto");
  EXPECT_EQ(after("share", "0.5"), "0.5");
  EXPECT_EQ(after("share", "1.1"), "x: found y, expected auto, or a number from 0 to 1");
  EXPECT_EQ(after("share", "autom"), "x: found y, expected auto, or a number from 0 to 1");
  EXPECT_EQ(after("share", ""), "x: found y, expected auto, or a number from 0 to 1");
  EXPECT_EQ(after("batch", "0"), "x: found y, expected auto, or a number from 1 to 2147483647");
  EXPECT_EQ(after("cache-mib", "auto"), "auto");
  EXPECT_EQ(after("threads", "auto"), "x: found y, expected 0 to 512");
}

TEST(Setting, WordsHaveNoCase) {
  EXPECT_EQ(after("colour", "RED"), "red");
  EXPECT_EQ(after("colour", "redd"), "x: found y, expected one of: red, green");
  EXPECT_EQ(after("colour", ""), "x: found y, expected one of: red, green");
  EXPECT_EQ(after("fills", "Off"), "off");
  EXPECT_EQ(after("fills", "no"), "x: found y, expected one of: on, off");
  EXPECT_EQ(after("json", "Yes"), "true");
  EXPECT_EQ(after("json", "0"), "false");
  EXPECT_EQ(after("json", "maybe"), "x: found y, expected true or false");
}

TEST(Setting, SizesAreInMib) {
  Options options;
  ASSERT_TRUE(set_setting(table(), "memory-mib", "0.5", options));
  EXPECT_EQ(options.memory, Bytes{512 << 10});
  ASSERT_TRUE(set_setting(table(), "cache-mib", "67108864", options));
  EXPECT_EQ(options.cache, Bytes{int64_t{1} << 46});
  EXPECT_EQ(after("memory-mib", "64"), "64");
}

TEST(Setting, TextsAreChecked) {
  EXPECT_EQ(after("name", "b"), "b");
  EXPECT_EQ(after("name", "c"), "x: found y, expected one of: a, b");
  EXPECT_EQ(after("name", "bad"), "x: it is bad");
}

TEST(Setting, ErrorsNameTheFlagAndShowOnlyWhatIsSafe) {
  Options options;
  EXPECT_EQ(set_setting(table(), "threads", "many", options).error().message,
            "--threads: found many, expected 0 to 512");
  EXPECT_EQ(set_setting(table(), "threads", "", options).error().message,
            "--threads: found nothing, expected 0 to 512");
  EXPECT_EQ(set_setting(table(), "threads", "\x1b[1m", options).error().message,
            "--threads: found \\x1b[1m, expected 0 to 512");
}

TEST(Setting, ValuesThatNobodyReadAreCheckedToo) {
  EXPECT_TRUE(check_settings(table(), Options{}));
  const auto why_not = [](const Options& options) {
    const Status status = check_settings(table(), options, "");
    return status ? std::string() : status.error().message;
  };
  EXPECT_EQ(why_not({.n_threads = -1}), "threads: found -1, expected 0 to 512");
  EXPECT_EQ(why_not({.top_p = NAN}), "top-p: found nan, expected 0 to 1");
  EXPECT_EQ(why_not({.penalty = 0}), "penalty: found 0, expected more than 0, at most 100");
  EXPECT_EQ(why_not({.memory = {-1}}),
            "memory-mib: found -9.5367431640625e-07, expected 0 to 67108864");
  EXPECT_EQ(why_not({.name = "c"}), "name: found c, expected one of: a, b");
  EXPECT_EQ(why_not({.part = {.share = 2}}),
            "share: found 2, expected auto, or a number from 0 to 1");
}

TEST(Setting, OfOneValue) {
  std::optional<int32_t> batch;
  SettingRef ref = setting_ref({.name = "batch", .range = from(1), .auto_words = {"auto"}}, batch);
  EXPECT_EQ(ref.kind(), SettingKind::kWhole);
  EXPECT_EQ(ref.text(), "auto");
  EXPECT_TRUE(ref.set("5"));
  EXPECT_EQ(batch, 5);
  EXPECT_TRUE(ref.check("6"));
  EXPECT_EQ(batch, 5);
  EXPECT_FALSE(ref.set("0"));
  EXPECT_EQ(ref.text(), "5");
}

TEST(Setting, ListsHaveCommas) {
  std::vector<std::optional<double>> shares = {0.5, std::nullopt};
  SettingRef ref =
      setting_ref({.name = "shares", .range = SettingRange{0, 1}, .auto_words = {"auto"}}, shares);
  EXPECT_TRUE(ref.is_list());
  EXPECT_EQ(ref.kind(), SettingKind::kNumber);
  EXPECT_EQ(ref.text(), "0.5,auto");
  EXPECT_TRUE(ref.set("1,auto,0"));
  EXPECT_EQ(ref.text(), "1,auto,0");
  const auto why_not = [&](std::string_view text) {
    return ref.set(text).error().message("--shares", text);
  };
  EXPECT_EQ(why_not("0,2"), "--shares: found 2, expected auto, or a number from 0 to 1");
  EXPECT_EQ(why_not("2"), "--shares: found 2, expected auto, or a number from 0 to 1");
  EXPECT_THAT(why_not("0,,1"), testing::StartsWith("--shares: found "));
  EXPECT_THAT(why_not("0,"), testing::StartsWith("--shares: found "));
  EXPECT_EQ(why_not(""), "--shares: found nothing, expected values with commas");
  EXPECT_EQ(ref.text(), "1,auto,0");
  std::vector<std::string> names;
  EXPECT_TRUE(setting_ref({.name = "names"}, names).set("a,b"));
  EXPECT_THAT(names, ElementsAre("a", "b"));
}

TEST(Setting, KindsSayWhatStandsForAValue) {
  std::vector<SettingKind> kinds;
  for (const char* name :
       {"threads", "seed", "top-p", "fills", "json", "cache-mib", "name", "colour"}) {
    kinds.push_back(find_setting(table(), name).kind());
  }
  EXPECT_THAT(kinds, ElementsAre(SettingKind::kWhole, SettingKind::kUnsigned, SettingKind::kNumber,
                                 SettingKind::kWord, SettingKind::kSwitch, SettingKind::kNumber,
                                 SettingKind::kText, SettingKind::kWord));
}

}  // namespace
}  // namespace hotset
