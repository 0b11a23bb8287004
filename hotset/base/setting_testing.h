// What every table of settings must pass. For tests only.
// Thread-compatible.
#ifndef HOTSET_BASE_SETTING_TESTING_H_
#define HOTSET_BASE_SETTING_TESTING_H_

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "hotset/base/setting.h"

namespace hotset::test {

// Names differ, there is a help, and what is printed of a value is read as that value: defaults,
// words, auto.
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
    for (const std::string& word : one.info.words) {
      ASSERT_TRUE(one.set(options, word));
      EXPECT_EQ(one.text(options), word);
      EXPECT_TRUE(one.check_value(options));
    }
    if (!one.info.auto_words.empty()) {
      ASSERT_TRUE(one.set(options, "auto"));
      EXPECT_EQ(one.text(options), "auto");
    }
  }
  EXPECT_TRUE(check_settings(table, defaults));
}

}  // namespace hotset::test

#endif  // HOTSET_BASE_SETTING_TESTING_H_
