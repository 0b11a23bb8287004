#include "hotset/device/profile.h"

#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

namespace hotset::device {
namespace {

class ProfileFile : public testing::Test {
 protected:
  nlohmann::json written(const Profile& profile) {
    const Status status = profile.write(path_);
    EXPECT_TRUE(status) << status.error().message;
    std::ifstream file(path_);
    return nlohmann::json::parse(file);  // throws where it is no JSON
  }

  const std::filesystem::path path_ =
      std::filesystem::path(testing::TempDir()) /
      (std::string("profile_") + testing::UnitTest::GetInstance()->current_test_info()->name() +
       ".json");
};

TEST_F(ProfileFile, HoldsCompleteEventsOnNamedTracks) {
  Profile profile(10);
  profile.add(Track::kCompute, "attention", 3, 10.5, 2.25);
  profile.add(Track::kTransfer, "experts", -1, 1e9, 0);
  profile.add(Track::kCpuLane, "odd \"name\"\\ \n", 0, 0, 1e-3);
  const nlohmann::json json = written(profile);
  std::map<int, std::string> threads;
  std::vector<nlohmann::json> complete;
  for (const auto& event : json.at("traceEvents")) {
    if (event.at("ph") == "M" && event.at("name") == "thread_name") {
      threads[event.at("tid")] = event.at("args").at("name");
    }
    if (event.at("ph") == "X") complete.push_back(event);
  }
  EXPECT_THAT(threads, testing::ElementsAre(testing::Pair(0, "host"), testing::Pair(1, "CPU lane"),
                                            testing::Pair(2, "compute queue"),
                                            testing::Pair(3, "transfer queue")));
  ASSERT_EQ(complete.size(), 3U);
  EXPECT_EQ(complete[0].at("name"), "attention");
  EXPECT_EQ(complete[0].at("tid"), 2);
  EXPECT_EQ(complete[0].at("ts"), 10.5);
  EXPECT_EQ(complete[0].at("dur"), 2.25);
  EXPECT_EQ(complete[0].at("args").at("layer"), 3);
  EXPECT_EQ(complete[1].at("ts"), 1e9);
  EXPECT_FALSE(complete[1].contains("args"));
  EXPECT_EQ(complete[2].at("name"), "odd \"name\"\\ \n");
  EXPECT_EQ(complete[2].at("args").at("layer"), 0);
  EXPECT_EQ(json.at("otherData").at("dropped_events"), "0");
}

TEST_F(ProfileFile, CountsWhatHasNoRoomOrNoTime) {
  Profile profile(2);
  const double infinity = std::numeric_limits<double>::infinity();
  profile.add(Track::kHost, "first", -1, 0, 1);
  profile.add(Track::kHost, "endless", -1, 0, infinity);
  profile.add(Track::kHost, "nowhere", -1, std::nan(""), 1);
  profile.add(Track::kHost, "second", -1, 1, 1);
  profile.add(Track::kHost, "third", -1, 2, 1);
  EXPECT_EQ(profile.n_dropped(), 3);
  EXPECT_EQ(profile.entries().size(), 2U);
  EXPECT_EQ(written(profile).at("otherData").at("dropped_events"), "3");
}

TEST_F(ProfileFile, IsWholeWithoutEvents) {
  EXPECT_GT(written(Profile(0)).at("traceEvents").size(), 0U);
}

TEST_F(ProfileFile, SaysWhyItCannotBeWritten) {
  const Status status = Profile(1).write("/nowhere/profile.json");
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kIo);
  EXPECT_THAT(status.error().message, testing::HasSubstr("/nowhere/profile.json: cannot open"));
  if (std::filesystem::exists("/dev/full")) {
    const Status full = Profile(1).write("/dev/full");
    ASSERT_FALSE(full);
    EXPECT_EQ(full.error().code, ErrorCode::kIo);
  }
}

TEST(Profile, TakesEventsOfManyThreads) {
  Profile profile(4000);
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 1000; ++i) {
          profile.add(static_cast<Track>(t), "work", i, i, 1);
          if (i % 100 == 0) (void)profile.entries();
        }
      });
    }
  }
  EXPECT_EQ(profile.entries().size(), 4000U);
  EXPECT_EQ(profile.n_dropped(), 0);
}

}  // namespace
}  // namespace hotset::device
