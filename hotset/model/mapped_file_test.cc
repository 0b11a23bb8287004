// Files that are cut while they are mapped: the process goes on, and knows.
#include "hotset/model/mapped_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "hotset/base/temporary_folder.h"
#include "hotset/model/gguf_testing.h"

namespace hotset::model {
namespace {

using testing::HasSubstr;

constexpr size_t kBytes = 100'000;

class MappedFileTest : public testing::Test {
 protected:
  MappedFileTest() {
    write();
    auto file = MappedFile::open(path_);
    EXPECT_TRUE(file) << file.error().message;
    file_.emplace(*std::move(file));
  }

  void write() const {
    std::vector<uint8_t> bytes(kBytes, 7);
    GgufBytes::write_bytes(path_, bytes);
  }
  void cut(size_t n_bytes) const { std::filesystem::resize_file(path_, n_bytes); }
  size_t sum(size_t begin, size_t end) const {
    size_t total = 0;
    for (const uint8_t byte : file_->bytes().subspan(begin, end - begin)) total += byte;
    return total;
  }
  void expect_cut(size_t n_bytes) const {
    const Status status = file_->check();
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kIo);
    EXPECT_EQ(status.error().message,
              fmt::format("{}: found {} bytes, expected {}: the file was cut while it was in use",
                          path_.string(), n_bytes, kBytes));
  }

  test::TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "file";
  std::optional<MappedFile> file_;
};

TEST_F(MappedFileTest, ReadsWholeFiles) {
  EXPECT_EQ(sum(0, kBytes), kBytes * 7);
  EXPECT_TRUE(file_->check());
}

TEST_F(MappedFileTest, TellsOfACutOnceAndOfEveryReadOfWhatWasCut) {
  cut(50'000);
  // Of the page that the cut goes through the system gives zeros without a word.
  EXPECT_EQ(sum(49'000, 51'000), 1000U * 7);
  expect_cut(50'000);
  EXPECT_TRUE(file_->check());
  EXPECT_EQ(sum(0, 49'000), 49'000U * 7);
  EXPECT_TRUE(file_->check());
  for (const size_t byte : {50'001U, 60'000U, 99'999U, 60'000U}) {
    EXPECT_EQ(sum(byte, byte + 1), 0U);
    expect_cut(50'000);
    EXPECT_TRUE(file_->check());
  }
  cut(10'000);
  expect_cut(10'000);
  EXPECT_EQ(sum(0, 8000), 8000U * 7);
  EXPECT_TRUE(file_->check());
}

TEST_F(MappedFileTest, WhatWasCutStaysLostWhateverComesInItsPlace) {
  cut(0);
  EXPECT_EQ(sum(0, kBytes), 0U);
  expect_cut(0);
  write();
  EXPECT_TRUE(file_->check());
  EXPECT_EQ(sum(50'000, 50'001), 0U);
  expect_cut(0);
}

TEST_F(MappedFileTest, ManyThreadsMayMeetIt) {
  cut(20'000);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 4; ++i) {
    threads.emplace_back([this] { EXPECT_EQ(sum(24'576, kBytes), 0U); });
  }
  for (std::thread& thread : threads) thread.join();
  expect_cut(20'000);
  EXPECT_EQ(sum(0, 16'384), 16'384U * 7);
  EXPECT_TRUE(file_->check());
}

TEST_F(MappedFileTest, OtherFilesAreAsTheyWere) {
  const auto other_path = folder_ / "other";
  GgufBytes::write_bytes(other_path, std::vector<uint8_t>(kBytes, 1));
  auto other = MappedFile::open(other_path);
  ASSERT_TRUE(other);
  cut(0);
  EXPECT_EQ(sum(0, 1), 0U);
  EXPECT_TRUE(other->check());
  EXPECT_EQ(other->bytes()[kBytes - 1], 1);
  const MappedFile moved = *std::move(other);
  EXPECT_TRUE(moved.check());
  EXPECT_FALSE(file_->check());
}

TEST(MappedFileDeathTest, FaultsElsewhereEndTheProcessAsBefore) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const test::TemporaryFolder folder;
  GgufBytes::write_bytes(folder / "file", std::vector<uint8_t>(kBytes, 7));
  EXPECT_DEATH(
      {
        const auto file = MappedFile::open(folder / "file");
        const int empty = memfd_create("empty", 0);
        const void* address = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, empty, 0);
        volatile const auto* at = static_cast<const uint8_t*>(address);
        std::exit(file ? *at : 0);
      },
      "");
}

TEST(GgufFileTest, NamesThePartThatWasCut) {
  const test::TemporaryFolder folder;
  GgufBytes bytes;
  bytes.key("general.architecture", "x");
  for (const char* name : {"a", "b"}) {
    bytes.add({.name = name, .ne = {64, 64}, .data = std::vector<uint8_t>(16384, 3)});
  }
  const auto first = bytes.write_split(folder / "split", 2);
  const auto file = GgufFile::open(first);
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_TRUE(file->check());
  std::filesystem::resize_file(folder / "split-00002-of-00002.gguf", 100);
  const auto data = file->tensor_bytes(*file->find_tensor("b"));
  EXPECT_EQ(data.back(), 0);
  const Status status = file->check();
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message, HasSubstr("split-00002-of-00002.gguf: found 100 bytes"));
  EXPECT_EQ(file->tensor_bytes(*file->find_tensor("a")).back(), 3);
  EXPECT_TRUE(file->check());
}

}  // namespace
}  // namespace hotset::model
