#include "hotset/base/nearest.h"

#include <gtest/gtest.h>

#include <vector>

namespace hotset {
namespace {

TEST(Nearest, CountsEdits) {
  EXPECT_EQ(edit_distance("", ""), 0U);
  EXPECT_EQ(edit_distance("abc", "abc"), 0U);
  EXPECT_EQ(edit_distance("", "abc"), 3U);
  EXPECT_EQ(edit_distance("abc", "axc"), 1U);
  EXPECT_EQ(edit_distance("abc", "acb"), 1U);  // neighbours swapped
  EXPECT_EQ(edit_distance("abc", "abcd"), 1U);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
  EXPECT_EQ(edit_distance("ca", "abc"), 3U);  // nothing is edited twice
}

TEST(Nearest, FindsWhatWasMeant) {
  const std::vector<std::string> names = {"-c",         "--ctx-size",   "--threads", "--temp",
                                          "--n-prompt", "--parallel",   "-t",        "--top-k",
                                          "--top-p",    "--ubatch-size"};
  EXPECT_EQ(nearest("--ctx-siz", names), "--ctx-size");
  EXPECT_EQ(nearest("-ctx-size", names), "--ctx-size");
  EXPECT_EQ(nearest("--ctx_size", names), "--ctx-size");
  EXPECT_EQ(nearest("--CTX-SIZE", names), "--ctx-size");
  EXPECT_EQ(nearest("--ctx", names), "--ctx-size");
  EXPECT_EQ(nearest("--thraeds", names), "--threads");
  EXPECT_EQ(nearest("--paralel", names), "--parallel");
  EXPECT_EQ(nearest("--top-j", names), "--top-k");  // as near as --top-p, and before it
  EXPECT_EQ(nearest("-T", names), "-t");
  EXPECT_EQ(nearest("-x", names), "");
  EXPECT_EQ(nearest("--nonsense", names), "");
  EXPECT_EQ(nearest("", names), "");
  EXPECT_EQ(nearest("--", names), "");
  EXPECT_EQ(nearest(std::string(1 << 20, 'a'), names), "");
  EXPECT_EQ(did_you_mean("--ctx-siz", names), "; did you mean --ctx-size?");
  EXPECT_EQ(did_you_mean("--nonsense", names), "");
}

}  // namespace
}  // namespace hotset
