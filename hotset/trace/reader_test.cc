#include "hotset/trace/reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "hotset/base/random.h"
#include "hotset/trace/little_endian.h"
#include "hotset/trace/trace_testing.h"
#include "hotset/trace/writer.h"

namespace hotset::trace {
namespace {

using ::testing::HasSubstr;

// Two groups on two devices, one layer without experts, lookups of one and of two tokens.
TraceHeader two_group_header() {
  return {.n_layer = 4,
          .experts_per_token = 2,
          .groups = {{.device = 0,
                      .n_expert = 4,
                      .layers = {1, 3},
                      .split = 1,
                      .split_sum = 4,
                      .group_host_bytes = {800},
                      .device_host_bytes = {800},
                      .alignment_bytes = 128,
                      .tensor_expert_bytes = {{40}, {60}}},
                     {.device = 1,
                      .n_expert = 8,
                      .layers = {2},
                      .split = 3,
                      .split_sum = 4,
                      .group_host_bytes = {720},
                      .device_host_bytes = {720},
                      .alignment_bytes = 64,
                      .tensor_expert_bytes = {{30}, {30}, {30}}}}};
}

std::vector<OwnedLookup> two_group_lookups() {
  return {{1, 2, {0, 3}}, {2, 2, {7, 1}}, {3, 2, {2, 0, 1, 2}}, {1, 1, {3}}};
}

// Gives bytes in small pieces of changing size, as a pipe does.
class TricklingSource : public ByteSource {
 public:
  explicit TricklingSource(std::span<const std::byte> bytes) : memory_(bytes) {}
  Result<size_t> read(std::span<std::byte> out) override {
    return memory_.read(out.first(std::min(out.size(), 1 + n_reads_++ % 7)));
  }

 private:
  MemorySource memory_;
  size_t n_reads_ = 0;
};

class FailingSource : public ByteSource {
 public:
  explicit FailingSource(std::span<const std::byte> bytes) : memory_(bytes) {}
  Result<size_t> read(std::span<std::byte> out) override {
    HOTSET_TRY(const size_t n_read, memory_.read(out.first(1)));
    if (n_read == 0) return make_error(ErrorCode::kIo, "the disk is gone");
    return n_read;
  }

 private:
  MemorySource memory_;
};

TEST(TraceReader, ReadsTheFixture) {
  auto reader = TraceReader::open(HOTSET_TEST_DATA_DIR "/mct1/two-groups.mct");
  ASSERT_TRUE(reader) << reader.error().message;
  EXPECT_EQ(reader->header(), two_group_header());
  EXPECT_EQ(reader->group_by_layer(), (std::vector<int32_t>{-1, 0, 1, 0}));
  auto lookups = all_lookups(*reader);
  ASSERT_TRUE(lookups) << lookups.error().message;
  EXPECT_EQ(*lookups, two_group_lookups());
}

TEST(TraceWriter, WritesTheFixtureByteForByte) {
  TestFolder folder;
  auto writer = TraceWriter::open(folder.file("out.mct"), two_group_header());
  ASSERT_TRUE(writer) << writer.error().message;
  for (const OwnedLookup& lookup : two_group_lookups()) {
    ASSERT_TRUE(writer->append(lookup.view()));
  }
  const uint64_t n_bytes = writer->offset_bytes();
  ASSERT_TRUE(writer->close());
  EXPECT_EQ(file_bytes(folder.file("out.mct")),
            file_bytes(HOTSET_TEST_DATA_DIR "/mct1/two-groups.mct"));
  EXPECT_EQ(std::filesystem::file_size(folder.file("out.mct")), n_bytes);
  EXPECT_EQ(folder.n_files(), 1U);
}

TEST(TraceReader, ReadsTheSameFromAPipe) {
  const auto bytes = encode_trace(two_group_header(), two_group_lookups());
  auto reader = TraceReader::from(std::make_unique<TricklingSource>(bytes), "pipe");
  ASSERT_TRUE(reader) << reader.error().message;
  EXPECT_EQ(reader->header(), two_group_header());
  EXPECT_EQ(all_lookups(*reader).value(), two_group_lookups());
}

TEST(TraceReader, TellsTheOffsetOfWhatComesNext) {
  std::vector<std::byte> header;
  encode_header(two_group_header(), header);
  const auto bytes = encode_trace(two_group_header(), two_group_lookups());
  auto reader = read_bytes(bytes).value();
  EXPECT_EQ(reader.offset_bytes(), header.size());
  ASSERT_TRUE(reader.next());
  EXPECT_EQ(reader.offset_bytes(), header.size() + 5 * sizeof(int32_t));
}

// A file that is cut anywhere but between two lookups is an error that names a byte offset.
TEST(TraceReader, EveryTruncationIsAnErrorWithAnOffset) {
  const auto bytes = encode_trace(two_group_header(), two_group_lookups());
  std::vector<size_t> ends;  // offsets at which a file may end
  {
    auto reader = read_bytes(bytes).value();
    do {
      ends.push_back(reader.offset_bytes());
    } while (reader.next().value() != nullptr);
  }
  for (size_t n = 0; n < bytes.size(); ++n) {
    const std::vector<std::byte> part(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(n));
    auto reader = read_bytes(part);
    const bool whole = std::ranges::find(ends, n) != ends.end();
    if (!reader) {
      EXPECT_LT(n, ends.front());
      EXPECT_EQ(reader.error().code, ErrorCode::kCorrupt);
      EXPECT_THAT(reader.error().message, HasSubstr("memory: byte "));
      continue;
    }
    const auto lookups = all_lookups(*reader);
    EXPECT_EQ(lookups.has_value(), whole) << "cut at byte " << n;
    if (!lookups) {
      EXPECT_EQ(lookups.error().code, ErrorCode::kCorrupt);
      EXPECT_THAT(lookups.error().message, HasSubstr("the file ends inside a lookup"));
    }
  }
}

TEST(TraceReader, AnErrorStays) {
  auto bytes = encode_trace(small_header(1, 4, 2), {{0, 2, {0, 1}}});
  bytes.pop_back();
  auto reader = read_bytes(bytes).value();
  const auto first = reader.next();
  const auto second = reader.next();
  ASSERT_FALSE(first);
  ASSERT_FALSE(second);
  EXPECT_EQ(first.error().message, second.error().message);
}

TEST(TraceReader, PassesOnThatTheSourceFailed) {
  const auto bytes = encode_trace(small_header(1, 4, 2), {{0, 2, {0, 1}}});
  auto reader = TraceReader::from(std::make_unique<FailingSource>(bytes), "disk");
  ASSERT_TRUE(reader) << reader.error().message;
  ASSERT_TRUE(reader->next());
  const auto lookup = reader->next();
  ASSERT_FALSE(lookup);
  EXPECT_EQ(lookup.error().code, ErrorCode::kIo);
}

TEST(TraceReader, RefusesWhatIsNotATrace) {
  const std::vector<std::byte> text(100, std::byte{'x'});
  const auto reader = read_bytes(text);
  ASSERT_FALSE(reader);
  EXPECT_EQ(reader.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(reader.error().message, HasSubstr("MCT1"));
}

TEST(TraceReader, SaysWhenThereIsNoFileOrAFolder) {
  TestFolder folder;
  EXPECT_EQ(TraceReader::open(folder.file("none.mct")).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(TraceReader::open(folder.file("")).error().code, ErrorCode::kIo);
}

// What is written over a whole trace, and where.
struct Damage {
  const char* name;
  size_t offset;
  std::vector<std::byte> bytes;
  const char* message;
};

template <typename T>
std::vector<std::byte> raw(T value) {
  std::vector<std::byte> bytes(sizeof(T));
  store_little_endian(value, bytes.data());
  return bytes;
}

TEST(TraceReader, RefusesEveryInconsistency) {
  // Offsets as in docs/formats/mct1.md for one group of two layers: 88 bytes of group, then
  // lookups.
  const std::vector<Damage> damages = {
      {"magic", 3, raw<uint8_t>('2'), "MCT1"},
      {"no layers", 4, raw<uint32_t>(0), "byte 4: number of layers is 0"},
      {"many layers", 4, raw<uint32_t>(4'000'000'000), "byte 4: number of layers is 4000000000"},
      {"no experts per token", 8, raw<uint32_t>(0), "experts per token is 0"},
      {"no groups", 12, raw<uint32_t>(0), "byte 12: number of groups is 0"},
      {"many groups", 12, raw<uint32_t>(3), "byte 12: number of groups is 3"},
      {"no experts", 20, raw<uint32_t>(0), "byte 16: group 0: number of experts is 0"},
      {"many experts", 20, raw<uint32_t>(70'000), "number of experts is 70000"},
      {"no layers in the group", 24, raw<uint32_t>(0), "byte 24: number of layers of a group is 0"},
      {"many layers in the group", 24, raw<uint32_t>(1U << 31), "byte 24"},
      {"layer out of range", 28, raw<uint32_t>(2), "layer of the group is 2, expected 0 to 1"},
      {"layer twice", 28, raw<uint32_t>(1), "layer 1 is named twice"},
      {"split above its sum", 36, raw<double>(2), "split is 2 of 1"},
      {"negative split", 36, raw<double>(-1), "split is -1 of 1"},
      {"split not a number", 36, raw<double>(std::numeric_limits<double>::quiet_NaN()), "split is"},
      {"split sum 0", 44, raw<double>(0), "split is 1 of 0"},
      {"no group bytes", 52, raw<int64_t>(0), "group host bytes is 0"},
      {"many group bytes", 52, raw<uint64_t>(UINT64_MAX), "group host bytes is"},
      {"device below its group", 60, raw<int64_t>(1), "device host bytes is 1"},
      {"alignment 0", 68, raw<int64_t>(0), "alignment is 0"},
      {"no tensors", 76, raw<uint32_t>(0), "byte 76: number of tensors of a group is 0"},
      {"many tensors", 76, raw<uint32_t>(65), "byte 76: number of tensors of a group is 65"},
      {"tensor of no bytes", 80, raw<int64_t>(0), "bytes of one expert of a tensor is 0"},
      {"tensor of all bytes", 80, raw<uint64_t>(UINT64_MAX), "bytes of one expert of a tensor is"},
      {"unknown layer", 96, raw<int32_t>(2), "byte 96: lookup: layer is 2, expected 0 to 1"},
      {"negative layer", 96, raw<int32_t>(-1), "byte 96: lookup: layer is -1"},
      {"k of 0", 100, raw<int32_t>(0), "byte 96: lookup: experts per token is 0"},
      {"k above the experts", 100, raw<int32_t>(5), "experts per token is 5, expected 1 to 4"},
      {"a partial token", 104, raw<int32_t>(3), "number of ids is 3, expected a multiple of 2"},
      {"no ids", 104, raw<int32_t>(0), "byte 104: lookup: number of ids is 0"},
      {"negative ids", 104, raw<int32_t>(-2), "byte 104: lookup: number of ids is -2"},
      {"more ids than a file can hold", 104, raw<int32_t>(INT32_MAX), "byte 104"},
      {"more ids than the file holds", 104, raw<int32_t>(1 << 24), "the file ends inside a lookup"},
      {"id out of range", 112, raw<int32_t>(4), "id 1 of the lookup is 4, expected 0 to 3"},
      {"negative id", 108, raw<int32_t>(-1), "id 0 of the lookup is -1, expected 0 to 3"},
  };
  const auto good = encode_trace(small_header(2, 4, 2), {{0, 2, {0, 3}}, {1, 2, {1, 2, 3, 0}}});
  ASSERT_TRUE(read_bytes(good));
  for (const Damage& damage : damages) {
    SCOPED_TRACE(damage.name);
    auto bytes = good;
    std::memcpy(bytes.data() + damage.offset, damage.bytes.data(), damage.bytes.size());
    auto reader = read_bytes(bytes);
    const Error error = reader ? all_lookups(*reader).error() : reader.error();
    EXPECT_EQ(error.code, ErrorCode::kCorrupt);
    EXPECT_THAT(error.message, HasSubstr("memory: byte "));
    EXPECT_THAT(error.message, HasSubstr(damage.message));
  }
}

TEST(TraceReader, RefusesMoreExpertsThanItsTablesAreFor) {
  TraceHeader header = small_header(17, 1 << 16, 2);
  const auto bytes = encode_trace(header, {});
  const auto reader = read_bytes(bytes);
  ASSERT_FALSE(reader);
  EXPECT_THAT(reader.error().message, HasSubstr("experts of all layers is 1114112"));
}

TEST(TraceReader, ReadsALookupLargerThanItsBuffer) {
  OwnedLookup large{0, 8, {}};
  Random random(7);
  for (int i = 0; i < 300'000 / 8 * 8; ++i) {
    large.ids.push_back(static_cast<int32_t>(random.below(64)));
  }
  const OwnedLookup small{0, 8, {0, 1, 2, 3, 4, 5, 6, 7}};
  const auto bytes = encode_trace(small_header(1, 64, 8), {small, large, small});
  auto reader = read_bytes(bytes).value();
  EXPECT_EQ(all_lookups(reader).value(), (std::vector<OwnedLookup>{small, large, small}));
}

TEST(TraceReader, RandomTracesComeBackAsTheyWereWritten) {
  constexpr uint64_t kSeed = 20261129;
  SCOPED_TRACE(fmt::format("seed {}", kSeed));
  Random random(kSeed);
  for (int round = 0; round < 50; ++round) {
    const auto n_layer = static_cast<uint32_t>(1 + random.below(5));
    const auto n_expert = static_cast<uint32_t>(1 + random.below(40));
    const TraceHeader header = small_header(n_layer, n_expert, 1);
    std::vector<OwnedLookup> lookups(random.below(40));
    for (OwnedLookup& lookup : lookups) {
      lookup.layer = static_cast<int32_t>(random.below(n_layer));
      lookup.experts_per_token = static_cast<int32_t>(1 + random.below(n_expert));
      lookup.ids.resize(static_cast<size_t>(lookup.experts_per_token) * (1 + random.below(9)));
      for (int32_t& id : lookup.ids) id = static_cast<int32_t>(random.below(n_expert));
    }
    const auto bytes = encode_trace(header, lookups);
    auto reader = read_bytes(bytes);
    ASSERT_TRUE(reader) << reader.error().message;
    EXPECT_EQ(reader->header(), header);
    EXPECT_EQ(all_lookups(*reader).value(), lookups);
  }
}

TEST(TraceReader, ReadsTheTracesOfOtherPrograms) {
  const char* shared = std::getenv("HOTSET_SHARED_DIR");
  if (shared == nullptr || !std::filesystem::is_directory(std::string(shared) + "/traces")) {
    GTEST_SKIP() << "HOTSET_SHARED_DIR has no traces";
  }
  int n_traces = 0;
  for (const char* folder : {"/traces", "/golden/policy"}) {
    for (const auto& entry : std::filesystem::directory_iterator(std::string(shared) + folder)) {
      if (entry.path().extension() != ".mct") continue;
      SCOPED_TRACE(entry.path());
      auto reader = TraceReader::open(entry.path().string());
      ASSERT_TRUE(reader) << reader.error().message;
      std::vector<std::byte> copy;
      encode_header(reader->header(), copy);
      while (true) {
        const auto lookup = reader->next();
        ASSERT_TRUE(lookup) << lookup.error().message;
        if (*lookup == nullptr) break;
        encode_lookup(**lookup, copy);
      }
      EXPECT_TRUE(copy == file_bytes(entry.path().string())) << "written again it differs";
      ++n_traces;
    }
  }
  EXPECT_GE(n_traces, 13);
}

TEST(TraceWriter, LeavesNothingBehindUnlessClosed) {
  TestFolder folder;
  {
    auto writer = TraceWriter::open(folder.file("out.mct"), small_header(1, 4, 2));
    ASSERT_TRUE(writer);
    ASSERT_TRUE(writer->append({.layer = 0, .experts_per_token = 1, .ids = std::vector{1}}));
    EXPECT_EQ(folder.n_files(), 1U);
  }
  EXPECT_EQ(folder.n_files(), 0U);
}

TEST(TraceWriter, RefusesALookupThatDoesNotFitAndGoesOn) {
  TestFolder folder;
  auto writer = TraceWriter::open(folder.file("out.mct"), small_header(1, 4, 2)).value();
  const std::vector<int32_t> ids = {1, 4};
  const Status refused = writer.append({.layer = 0, .experts_per_token = 2, .ids = ids});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(writer.append({.layer = 0, .experts_per_token = 1, .ids = std::vector{3}}));
  ASSERT_TRUE(writer.close());
  auto reader = TraceReader::open(folder.file("out.mct")).value();
  EXPECT_EQ(all_lookups(reader).value(), (std::vector<OwnedLookup>{{0, 1, {3}}}));
}

TEST(TraceWriter, SaysWhyItCannotWrite) {
  TestFolder folder;
  const TraceHeader header = small_header(1, 4, 2);
  EXPECT_EQ(TraceWriter::open(folder.file("no/such/folder.mct"), header).error().code,
            ErrorCode::kIo);
  EXPECT_EQ(TraceWriter::open(folder.file(""), header).error().code, ErrorCode::kIo);
  EXPECT_EQ(TraceWriter::open(folder.file("x.mct"), {}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(folder.n_files(), 0U);
}

}  // namespace
}  // namespace hotset::trace
