#include "hotset/model/gguf_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "hotset/base/random.h"
#include "hotset/base/temporary_folder.h"
#include "hotset/model/gguf_scan.h"
#include "hotset/model/gguf_testing.h"

namespace hotset::model {
namespace {

using test::TemporaryFolder;
using testing::ElementsAre;
using testing::HasSubstr;

template <typename T>
void expect_error(const Result<T>& result, ErrorCode code, const std::vector<std::string>& parts) {
  ASSERT_FALSE(result) << "expected: " << testing::PrintToString(parts);
  EXPECT_EQ(result.error().code, code) << result.error().message;
  for (const std::string& part : parts) EXPECT_THAT(result.error().message, HasSubstr(part));
}

// That the file is refused with this code and a message that has its name and these parts.
void expect_refused(const std::vector<uint8_t>& bytes, ErrorCode code,
                    std::vector<std::string> parts) {
  parts.emplace_back("some.gguf");
  expect_error(GgufFile::parse(bytes, "some.gguf"), code, parts);
}
void expect_corrupt(const GgufBytes& file, const std::vector<std::string>& parts) {
  expect_refused(file.bytes(), ErrorCode::kCorrupt, parts);
}

GgufFile parse(const std::vector<uint8_t>& bytes) {
  auto file = GgufFile::parse(bytes, "some.gguf");
  EXPECT_TRUE(file) << file.error().message;
  HOTSET_CHECK(file.has_value());
  return *std::move(file);
}

// One of everything.
GgufBytes small_file() {
  GgufBytes file;
  file.key("general.architecture", "test");
  file.key("u8", uint8_t{200}).key("i8", int8_t{-100}).key("u16", uint16_t{60000});
  file.key("i16", int16_t{-30000})
      .key("u32", uint32_t{4000000000})
      .key("i32", int32_t{-2000000000});
  file.key("u64", uint64_t{1} << 62).key("i64", -(int64_t{1} << 62)).key("f32", 1.5F);
  file.key("f64", -2.5).key("bool", true).key("text", "some text");
  file.array<std::string>("texts", {"a", "", "ccc"}).array<int32_t>("numbers", {1, -2, 3});
  file.array<float>("floats", {0.5F, -1}).array<uint8_t>("none", {});
  file.add({.name = "first", .ne = {4, 3}});
  file.add({.name = "second", .ne = {64, 2, 2}, .type = GGML_TYPE_Q8_0});
  file.add({.name = "third", .ne = {5}, .type = GGML_TYPE_F16});
  return file;
}

TEST(GgufFile, GivesWhatWasWritten) {
  const std::vector<uint8_t> bytes = small_file().bytes();
  const GgufFile file = parse(bytes);
  EXPECT_EQ(file.name(), "some.gguf");
  EXPECT_EQ(file.n_parts(), 1U);
  EXPECT_EQ(file.total_bytes().count, static_cast<int64_t>(bytes.size()));
  EXPECT_EQ(file.part_mapping(0), nullptr);
  EXPECT_EQ(file.find_int("u8"), 200);
  EXPECT_EQ(file.find_int("i8"), -100);
  EXPECT_EQ(file.find_int("u16"), 60000);
  EXPECT_EQ(file.find_int("i16"), -30000);
  EXPECT_EQ(file.find_int("u32"), 4000000000);
  EXPECT_EQ(file.find_int("i32"), -2000000000);
  EXPECT_EQ(file.find_int("u64"), int64_t{1} << 62);
  EXPECT_EQ(file.find_int("i64"), -(int64_t{1} << 62));
  EXPECT_EQ(file.find_float("f32"), 1.5);
  EXPECT_EQ(file.find_float("f64"), -2.5);
  EXPECT_EQ(file.find_float("i8"), -100.0);
  EXPECT_EQ(file.find_bool("bool"), true);
  EXPECT_EQ(file.find_string("text"), "some text");
  EXPECT_EQ(file.find_strings("texts"), (std::vector<std::string>{"a", "", "ccc"}));
  EXPECT_EQ(file.find_ints("numbers"), (std::vector<int64_t>{1, -2, 3}));
  EXPECT_EQ(file.find_ints("none"), std::vector<int64_t>());
  EXPECT_EQ(file.find_floats("floats"), (std::vector<float>{0.5F, -1}));
  EXPECT_EQ(file.array_length("texts"), 3);
  EXPECT_EQ(file.array_length("none"), 0);
  EXPECT_EQ(file.array_length("text"), std::nullopt);
  EXPECT_TRUE(file.has("text"));
}

TEST(GgufFile, TextsAreAsLongAsTheFileSays) {
  const std::string nul("qwen3moe\0x", 10);
  GgufBytes written;
  written.key("general.architecture", nul).array<std::string>("before", {"a", ""});
  written.array<std::string>("texts", {std::string("\0", 1), nul, "", "end"}).key("empty", "");
  written.array<std::string>("none", {});
  const std::vector<uint8_t> bytes = written.bytes();
  const GgufFile file = parse(bytes);
  EXPECT_EQ(file.require_string("general.architecture"), nul);
  EXPECT_EQ(file.find_strings("texts"),
            (std::vector<std::string>{std::string("\0", 1), nul, "", "end"}));
  EXPECT_EQ(file.find_strings("before"), (std::vector<std::string>{"a", ""}));
  EXPECT_EQ(file.find_strings("none"), std::vector<std::string>());
  EXPECT_EQ(file.find_string("empty"), "");
  EXPECT_EQ(GgufBytes(file).bytes(), bytes) << "copies keep them";
}

// A mapped file may be written to by others after it was checked.
TEST(GgufFile, LengthsThatHaveChangedReadNothingElse) {
  GgufBytes written;
  written.key("text", "0123456789").array<std::string>("texts", {"abc", "def"});
  std::vector<uint8_t> bytes = written.bytes();
  const GgufFile file = parse(bytes);
  for (const char* text : {"0123456789", "def"}) {
    const auto at = std::ranges::search(bytes, std::string_view(text)).begin() - bytes.begin();
    bytes[static_cast<size_t>(at) - 1] = 0xFF;  // the length's highest byte
  }
  expect_error(file.find_string("text"), ErrorCode::kCorrupt, {"some.gguf", "'text'", "changed"});
  expect_error(file.find_strings("texts"), ErrorCode::kCorrupt, {"'texts'", "changed"});
}

// Names may hold what a terminal obeys, line ends that look like another message, and much of it.
TEST(GgufFile, MessagesQuoteNamesAsText) {
  GgufBytes twice;
  const std::string name = "a\nhotset: error: b\xC2\x9B" + std::string(60000, 'n');
  twice.key(name, 1).key(name, 2);
  const auto refused = GgufFile::parse(twice.bytes(), "some.gguf");
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("'a\\x0ahotset: error: b\\u009bnnn"));
  EXPECT_THAT(refused.error().message, HasSubstr("(60020 bytes)' occurs twice"));
  EXPECT_LT(refused.error().message.size(), 400U);
  GgufBytes tensors;
  tensors.add({.name = "t\r\x1B[2J"}).add({.name = "t\r\x1B[2J"});
  expect_corrupt(tensors, {"the tensor 't\\x0d\\x1b[2J' occurs twice"});
}

TEST(GgufFile, FindsTensorsAndTheirBytes) {
  const std::vector<uint8_t> bytes = small_file().bytes();
  const GgufFile file = parse(bytes);
  ASSERT_EQ(file.tensors().size(), 3U);
  const TensorInfo* second = file.find_tensor("second");
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(describe(*second), "[2, 2, 64] q8_0");
  EXPECT_EQ(second->n_bytes.count, 4 * 2 * 34);
  const std::span<const uint8_t> data = file.tensor_bytes(*second);
  ASSERT_EQ(data.size(), 4U * 2 * 34);
  EXPECT_EQ(data[0], 1);
  EXPECT_EQ(data[1], 8);
  EXPECT_EQ(second->offset % 32, 0U);
  EXPECT_EQ(describe(file.tensors()[2]), "[5] f16");
  EXPECT_EQ(file.find_tensor("fourth"), nullptr);
  EXPECT_EQ(file.find_tensor(""), nullptr);
}

TEST(GgufFile, AgreesWithTheWriterOfGgml) {
  const gguf_context_ptr written(gguf_init_empty());
  gguf_set_val_str(written.get(), "general.architecture", "test");
  const int32_t numbers[] = {1, 2, 3};
  gguf_set_arr_data(written.get(), "numbers", GGUF_TYPE_INT32, numbers, 3);
  const ggml_context_ptr context(
      ggml_init({.mem_size = 4 * ggml_tensor_overhead(), .mem_buffer = nullptr, .no_alloc = true}));
  ggml_tensor* tensor = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, 4, 3);
  ggml_set_name(tensor, "first");
  gguf_add_tensor(written.get(), tensor);
  std::vector<uint8_t> bytes(gguf_get_meta_size(written.get()));
  gguf_get_meta_data(written.get(), bytes.data());
  bytes.resize(bytes.size() + 4 * 3 * 4);
  const GgufFile file = parse(bytes);
  EXPECT_EQ(file.find_ints("numbers"), (std::vector<int64_t>{1, 2, 3}));
  ASSERT_NE(file.find_tensor("first"), nullptr);
  EXPECT_EQ(describe(*file.find_tensor("first")), "[3, 4] f32");
}

TEST(GgufFile, TakesVersion2AndFilesWithoutTensors) {
  GgufBytes file = small_file();
  file.version = 2;
  EXPECT_EQ(parse(file.bytes()).tensors().size(), 3U);
  file.tensors.clear();
  EXPECT_EQ(parse(file.bytes()).tensors().size(), 0U);
  EXPECT_FALSE(parse(GgufBytes().bytes()).has("anything"));
}

// The last tensor's padding may be missing; everything before it may not.
TEST(GgufFile, RefusesEveryTruncation) {
  const std::vector<uint8_t> whole = small_file().bytes();
  const size_t data_end = whole.size() - 32 + 10;  // "third" has 10 bytes
  for (size_t n = 0; n < whole.size(); ++n) {
    // A copy of its own, so that a sanitizer sees a read behind the end.
    const std::vector<uint8_t> cut(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(n));
    const auto file = GgufFile::parse(cut, "cut.gguf");
    ASSERT_EQ(file.has_value(), n >= data_end) << n;
    if (file) continue;
    EXPECT_EQ(file.error().code, ErrorCode::kCorrupt) << n;
    EXPECT_THAT(file.error().message, HasSubstr("cut.gguf")) << n;
  }
}

TEST(GgufFile, SurvivesEveryFlippedByte) {
  const std::vector<uint8_t> whole = small_file().bytes();
  for (size_t i = 0; i < whole.size(); ++i) {
    for (const int flip : {0x01, 0x80, 0xFF}) {
      std::vector<uint8_t> bytes = whole;
      bytes[i] = static_cast<uint8_t>(bytes[i] ^ flip);
      const auto file = GgufFile::parse(bytes, "flipped.gguf");
      if (!file) continue;
      for (const TensorInfo& tensor : file->tensors()) {
        ASSERT_EQ(std::cmp_equal(file->tensor_bytes(tensor).size(), tensor.n_bytes.count), true);
      }
      (void)file->find_strings("texts");
      (void)file->find_ints("numbers");
    }
  }
}

TEST(GgufFile, RefusesWhatIsNoGguf) {
  expect_refused({}, ErrorCode::kCorrupt, {"found nothing at its start, expected 'GGUF'"});
  expect_refused(std::vector<uint8_t>(1000, 0), ErrorCode::kCorrupt,
                 {"not a GGUF file", "found 00 00 00 00 at"});
  expect_refused({'G', 'G', 'U'}, ErrorCode::kCorrupt, {"found 47 47 55 at"});
  GgufBytes file = small_file();
  file.magic = "GGML";
  expect_corrupt(file, {"found 47 47 4d 4c at"});
}

TEST(GgufFile, RefusesOtherVersionsAndByteOrder) {
  GgufBytes file = small_file();
  for (const uint32_t version : {0U, 1U, 4U, 99U, 0xFFFFFFFFU}) {
    file.version = version;
    expect_refused(file.bytes(), ErrorCode::kUnsupported,
                   {fmt::format("found GGUF version {}, expected 2 to 3", version)});
  }
  file.version = std::byteswap(3U);
  expect_refused(file.bytes(), ErrorCode::kUnsupported, {"big-endian, expected little-endian"});
}

TEST(GgufFile, RefusesCountsThatCannotBe) {
  constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();
  for (const uint64_t n : {kHuge, uint64_t{1} << 63, uint64_t{1} << 32, kMaxGgufKeys + 1}) {
    GgufBytes file = small_file();
    file.n_keys = n;
    expect_corrupt(file, {fmt::format("found {} keys, expected at most 16384", n)});
  }
  for (const uint64_t n : {kHuge, uint64_t{1} << 63, uint64_t{1} << 32, kMaxGgufTensors + 1}) {
    GgufBytes file = small_file();
    file.n_tensors = n;
    expect_corrupt(file, {fmt::format("found {} tensors, expected at most 32768", n)});
  }
  GgufBytes file = small_file();
  file.n_keys = kMaxGgufKeys;
  expect_corrupt(file, {"found 16384 keys, but only", "bytes are left"});
  file = small_file();
  file.n_tensors = kMaxGgufTensors;
  expect_corrupt(file, {"found 32768 tensors, but only", "bytes are left"});
  // One too many or too few: what follows is read as something else.
  for (const int change : {-1, 1}) {
    file = small_file();
    file.n_keys = static_cast<uint64_t>(17 + change);
    EXPECT_FALSE(GgufFile::parse(file.bytes(), "some.gguf")) << change;
  }
}

TEST(GgufFile, RefusesBadKeys) {
  expect_corrupt(GgufBytes().key("", 1), {"a key of 0 bytes, expected 1 to 65535"});
  expect_corrupt(GgufBytes().key(std::string(65536, 'x'), 1), {"a key of 65536 bytes"});
  expect_corrupt(GgufBytes().key(std::string("a\0b", 3), 1), {"a key of 3 bytes", "without NUL"});
  expect_corrupt(GgufBytes().key("again", 1).key("other", 1).key("again", 2),
                 {"the key 'again' occurs twice"});
  GgufBytes file;
  file.key("key", 1).key("key2", 1);
  std::vector<uint8_t> bytes = file.bytes();
  bytes[24 + 7] = 0x7F;  // the key's length
  expect_refused(bytes, ErrorCode::kCorrupt, {"byte 24: key of 9151", "but only"});
}

TEST(GgufFile, RefusesBadValues) {
  const auto value = [](uint32_t type) { return ByteWriter().put(type); };
  for (const uint32_t type : {13U, 99U, 0xFFFFFFFFU}) {
    expect_corrupt(GgufBytes().raw_key("odd", value(type)),
                   {"key 'odd'", fmt::format("found value type {}, expected 0 to 12", type)});
    expect_corrupt(GgufBytes().raw_key("odd", value(GGUF_TYPE_ARRAY).put(type).put(uint64_t{0})),
                   {"key 'odd'", fmt::format("found value type {}, expected 0 to 12", type)});
  }
  expect_corrupt(
      GgufBytes().raw_key("nested", value(GGUF_TYPE_ARRAY).put(uint32_t{9}).put(uint64_t{1})),
      {"key 'nested'", "an array of arrays"});
  for (const uint64_t n : {std::numeric_limits<uint64_t>::max(), uint64_t{1} << 62, uint64_t{5}}) {
    expect_corrupt(GgufBytes().raw_key(
                       "long", value(GGUF_TYPE_ARRAY).put(uint32_t{GGUF_TYPE_INT32}).put(n).put(1)),
                   {"key 'long'", fmt::format("{} values of 4 bytes, but only 4 bytes", n)});
    EXPECT_FALSE(GgufFile::parse(
        GgufBytes()
            .raw_key("long", value(GGUF_TYPE_ARRAY).put(uint32_t{GGUF_TYPE_STRING}).put(n))
            .bytes(),
        "some.gguf"));
    expect_corrupt(GgufBytes().raw_key("text", value(GGUF_TYPE_STRING).put(n).put(uint16_t{0})),
                   {fmt::format("string value of {} bytes, but only 2 are left", n)});
  }
  expect_corrupt(GgufBytes().raw_key("short", value(GGUF_TYPE_UINT64).put(uint32_t{0})),
                 {"key 'short'", "1 values of 8 bytes, but only 4 bytes"});
}

TEST(GgufFile, RefusesBadAlignments) {
  for (const uint32_t alignment : {0U, 3U, 33U, 1U << 21, 0xFFFFFFFFU}) {
    expect_corrupt(small_file().key("general.alignment", alignment),
                   {"key 'general.alignment'",
                    fmt::format("found {}, expected a power of two up to 1048576", alignment)});
  }
  expect_corrupt(small_file().key("general.alignment", uint64_t{32}),
                 {"found type 10, expected u32"});
  expect_corrupt(small_file().key("general.alignment", "32"), {"found type 8, expected u32"});
  expect_corrupt(small_file().array<uint32_t>("general.alignment", {32}),
                 {"found an array, expected u32"});
}

TEST(GgufFile, FollowsTheAlignmentOfTheFile) {
  for (const uint32_t alignment : {1U, 2U, 8U, 64U, 4096U}) {
    GgufBytes written = small_file().key("general.alignment", alignment);
    written.alignment = alignment;
    const std::vector<uint8_t> bytes = written.bytes();
    const GgufFile file = parse(bytes);
    for (const TensorInfo& tensor : file.tensors()) {
      EXPECT_EQ(tensor.offset % alignment, 0U);
      EXPECT_EQ(file.tensor_bytes(tensor)[1], 8) << alignment << " " << tensor.name;
    }
  }
}

TEST(GgufFile, RefusesBadTensorNames) {
  expect_corrupt(small_file().add({.name = ""}), {"a tensor name of 0 bytes, expected 1 to 63"});
  expect_corrupt(small_file().add({.name = std::string(64, 'n')}), {"a tensor name of 64 bytes"});
  expect_corrupt(small_file().add({.name = std::string("a\0b", 3)}),
                 {"a tensor name of 3 bytes", "without NUL"});
  expect_corrupt(small_file().add({.name = "first"}), {"the tensor 'first' occurs twice"});
  EXPECT_EQ(parse(small_file().add({.name = std::string(63, 'n')}).bytes()).tensors().size(), 4U);
}

TEST(GgufFile, RefusesBadShapes) {
  for (const uint32_t n_dims : {0U, 5U, 0xFFFFFFFFU}) {
    expect_corrupt(small_file().add({.name = "odd", .n_dims = n_dims}),
                   {"tensor 'odd'", fmt::format("found {} dimensions, expected 1 to 4", n_dims)});
  }
  for (const int64_t n : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::min()}) {
    expect_corrupt(small_file().add({.name = "odd", .ne = {4, n}}),
                   {"tensor 'odd'", fmt::format("dimension 1 is {}, expected a positive", n)});
  }
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  expect_corrupt(small_file().add({.name = "odd", .ne = {4, kMost}}),
                 {"tensor 'odd'", "more values than 64 bits can count"});
  expect_corrupt(small_file().add({.name = "odd", .ne = {int64_t{1} << 32, int64_t{1} << 32}}),
                 {"tensor 'odd'", "more values than 64 bits can count"});
  // Countable values, but not their bytes.
  expect_corrupt(small_file().add({.name = "odd", .ne = {kMost}}),
                 {"tensor 'odd'", "larger than the file"});
  expect_corrupt(small_file().add({.name = "odd", .ne = {int64_t{1} << 62}, .type = GGML_TYPE_F64}),
                 {"tensor 'odd'", "larger than the file"});
  expect_corrupt(small_file().add({.name = "odd", .ne = {1 << 20}, .data_bytes = 0}),
                 {"tensor 'odd' of 1048576 values is larger than the file of"});
}

TEST(GgufFile, RefusesUnknownTensorTypes) {
  // 4 and 5 were Q4_2 and Q4_3, 31 to 33 and 36 to 38 repacked layouts.
  for (const uint32_t type : {4U, 5U, 31U, 32U, 33U, 36U, 37U, 38U, 43U, 1000U, 0xFFFFFFFFU}) {
    expect_refused(small_file().add({.name = "odd", .ne = {256}, .type = type}).bytes(),
                   ErrorCode::kUnsupported,
                   {"tensor 'odd'", fmt::format("found type {}, expected one that", type)});
  }
}

TEST(GgufFile, RefusesRowsThatAreNoWholeBlocks) {
  expect_corrupt(small_file().add({.name = "odd", .ne = {33}, .type = GGML_TYPE_Q8_0}),
                 {"tensor 'odd'", "rows of 33 values, expected a multiple of 32 for q8_0"});
  expect_corrupt(small_file().add({.name = "odd", .ne = {128, 2}, .type = GGML_TYPE_Q4_K}),
                 {"tensor 'odd'", "rows of 128 values, expected a multiple of 256 for q4_K"});
}

TEST(GgufFile, RefusesOffsetsThatAreNotTheNext) {
  // "third" belongs at 64 + 288.
  for (const uint64_t offset : {uint64_t{0}, uint64_t{351}, uint64_t{353}, uint64_t{384},
                                std::numeric_limits<uint64_t>::max() - 31}) {
    GgufBytes file = small_file();
    file.tensor("third").offset = offset;
    expect_corrupt(
        file, {"tensor 'third'", fmt::format("found its data at offset {}, expected 352", offset)});
  }
}

TEST(GgufFile, RefusesWrongTypesOfValues) {
  const std::vector<uint8_t> bytes = small_file().bytes();
  const GgufFile file = parse(bytes);
  const auto wrong = [](const auto& result, const std::string& key, const std::string& found,
                        const std::string& expected) {
    expect_error(result, ErrorCode::kCorrupt,
                 {fmt::format("some.gguf: key '{}': found {}, expected {}", key, found, expected)});
  };
  wrong(file.find_int("f32"), "f32", "f32", "an integer");
  wrong(file.find_int("bool"), "bool", "bool", "an integer");
  wrong(file.find_int("text"), "text", "str", "an integer");
  wrong(file.find_int("numbers"), "numbers", "an array of i32", "an integer");
  wrong(file.find_float("text"), "text", "str", "a number");
  wrong(file.find_float("bool"), "bool", "bool", "a number");
  wrong(file.find_float("floats"), "floats", "an array of f32", "a number");
  wrong(file.find_bool("u8"), "u8", "u8", "a boolean");
  wrong(file.find_string("i64"), "i64", "i64", "a string");
  wrong(file.find_string("texts"), "texts", "an array of str", "a string");
  wrong(file.find_strings("text"), "text", "str", "an array of strings");
  wrong(file.find_strings("numbers"), "numbers", "an array of i32", "an array of strings");
  wrong(file.find_ints("u8"), "u8", "u8", "an array of integers");
  wrong(file.find_ints("floats"), "floats", "an array of f32", "an array of integers");
  wrong(file.find_ints("texts"), "texts", "an array of str", "an array of integers");
  wrong(file.find_floats("f32"), "f32", "f32", "an array of floating-point");
  wrong(file.find_floats("numbers"), "numbers", "an array of i32", "an array of floating-point");
  wrong(file.require_int("text", 0, 1), "text", "str", "an integer");
  wrong(file.require_float("text"), "text", "str", "a number");
  wrong(file.require_string("u8"), "u8", "u8", "a string");
}

TEST(GgufFile, AbsentKeysAreNothingOrAnError) {
  const std::vector<uint8_t> bytes = small_file().bytes();
  const GgufFile file = parse(bytes);
  EXPECT_EQ(file.find_int("no"), std::nullopt);
  EXPECT_EQ(file.find_float("no"), std::nullopt);
  EXPECT_EQ(file.find_bool("no"), std::nullopt);
  EXPECT_EQ(file.find_string("no"), std::nullopt);
  EXPECT_EQ(file.find_strings("no"), std::nullopt);
  EXPECT_EQ(file.find_ints("no"), std::nullopt);
  EXPECT_EQ(file.find_floats("no"), std::nullopt);
  EXPECT_EQ(file.array_length("no"), std::nullopt);
  EXPECT_FALSE(file.has("no"));
  expect_error(file.require_int("no", 1, 9), ErrorCode::kCorrupt,
               {"some.gguf: key 'no': found nothing, expected 1 to 9"});
  expect_error(file.require_float("no"), ErrorCode::kCorrupt,
               {"some.gguf: key 'no': found nothing, expected a number"});
  expect_error(file.require_string("no"), ErrorCode::kCorrupt,
               {"some.gguf: key 'no': found nothing, expected a string"});
}

TEST(GgufFile, RefusesNumbersOutOfRange) {
  const std::vector<uint8_t> bytes = small_file()
                                         .key("most", std::numeric_limits<uint64_t>::max())
                                         .array<uint64_t>("all", {1, uint64_t{1} << 63})
                                         .bytes();
  const GgufFile file = parse(bytes);
  EXPECT_EQ(file.find_int("u8", 200, 200), 200);
  expect_error(file.find_int("u8", 0, 199), ErrorCode::kCorrupt,
               {"some.gguf: key 'u8': found 200, expected 0 to 199"});
  expect_error(file.find_int("i8", -99, 0), ErrorCode::kCorrupt, {"found -100, expected -99 to 0"});
  expect_error(file.require_int("u8", 201, 300), ErrorCode::kCorrupt,
               {"found 200, expected 201 to 300"});
  expect_error(file.find_int("most"), ErrorCode::kCorrupt, {"found 18446744073709551615"});
  expect_error(file.find_float("most"), ErrorCode::kCorrupt, {"found 18446744073709551615"});
  expect_error(file.find_ints("all"), ErrorCode::kCorrupt, {"found 9223372036854775808 at 1"});
}

TEST(GgufFile, RefusesNumbersThatAreNotFinite) {
  GgufBytes written;
  written.key("nan", std::nanf("")).key("inf", std::numeric_limits<float>::infinity());
  written.key("large", 1e300).key("dnan", std::nan("")).key("most", 3e38);
  const std::vector<uint8_t> bytes = written.bytes();
  const GgufFile file = parse(bytes);
  for (const char* key : {"nan", "inf", "large", "dnan"}) {
    expect_error(file.find_float(key), ErrorCode::kCorrupt,
                 {fmt::format("some.gguf: key '{}'", key), "expected a finite 32-bit number"});
    expect_error(file.require_float(key), ErrorCode::kCorrupt, {"expected a finite"});
  }
  EXPECT_EQ(file.find_float("most"), 3e38);
}

TEST(GgufFile, AnyByteIsABoolean) {
  const ByteWriter value = ByteWriter().put(uint32_t{GGUF_TYPE_BOOL}).put(uint8_t{2});
  const std::vector<uint8_t> bytes = GgufBytes().raw_key("odd", value).bytes();
  EXPECT_EQ(parse(bytes).find_bool("odd"), true);
}

// Random headers made of plausible pieces: most are wrong in a new way.
TEST(GgufFile, SurvivesRandomFiles) {
  constexpr uint64_t kSeed = 8051;
  SCOPED_TRACE(kSeed);
  Random random(kSeed);
  int n_read = 0;
  for (int i = 0; i < 3000; ++i) {
    GgufBytes file;
    for (uint64_t n = random.below(4); n > 0; --n) {
      const auto name = fmt::format("k{}", random.below(6));
      switch (random.below(4)) {
        case 0:
          file.key(name, static_cast<uint32_t>(random.next_u64()));
          break;
        case 1:
          file.key(name, std::string(random.below(9), 'x'));
          break;
        case 2:
          file.array<float>(name, std::vector<float>(random.below(5)));
          break;
        default:
          file.raw_key(name, ByteWriter()
                                 .put(static_cast<uint32_t>(random.below(14)))
                                 .put(static_cast<uint32_t>(random.below(14)))
                                 .put(random.below(3)));
      }
    }
    for (uint64_t n = random.below(4); n > 0; --n) {
      TensorEntry t{.name = fmt::format("t{}", random.below(9)),
                    .ne = {static_cast<int64_t>(random.below(3) * 32)},
                    .type = static_cast<uint32_t>(random.below(GGML_TYPE_COUNT + 1))};
      if (random.below(9) == 0) t.offset = random.next_u64() >> random.below(64);
      file.add(std::move(t));
    }
    const std::vector<uint8_t> bytes = file.bytes();
    const auto read = GgufFile::parse(bytes, "random.gguf");
    if (!read) {
      EXPECT_THAT(read.error().message, HasSubstr("random.gguf"));
      continue;
    }
    ++n_read;
    for (const TensorInfo& t : read->tensors()) (void)read->tensor_bytes(t);
  }
  EXPECT_GT(n_read, 300);
}

class GgufFileOnDisk : public testing::Test {
 protected:
  std::string read_error(const std::filesystem::path& path, ErrorCode code) {
    const auto file = GgufFile::open(path);
    EXPECT_FALSE(file);
    if (file) return "";
    EXPECT_EQ(file.error().code, code) << file.error().message;
    EXPECT_THAT(file.error().message, HasSubstr(path.filename().string()));
    return file.error().message;
  }
  std::string part(int number, int count) {
    return fmt::format("m-{:05}-of-{:05}.gguf", number, count);
  }

  TemporaryFolder folder_;
};

TEST_F(GgufFileOnDisk, OpensAndMaps) {
  small_file().write(folder_ / "m.gguf");
  const auto file = GgufFile::open(folder_ / "m.gguf");
  ASSERT_TRUE(file) << file.error().message;
  ASSERT_NE(file->part_mapping(0), nullptr);
  EXPECT_EQ(file->part_mapping(0)->bytes().data(), file->part_bytes(0).data());
  EXPECT_EQ(file->tensors().size(), 3U);
}

TEST_F(GgufFileOnDisk, RefusesWhatIsNoRegularFile) {
  EXPECT_THAT(read_error(folder_ / "absent.gguf", ErrorCode::kNotFound), HasSubstr("cannot open"));
  std::filesystem::create_directory(folder_ / "directory.gguf");
  EXPECT_THAT(read_error(folder_ / "directory.gguf", ErrorCode::kInvalidArgument),
              HasSubstr("found a directory, expected a regular file"));
  EXPECT_THAT(read_error("/dev/null", ErrorCode::kInvalidArgument), HasSubstr("a special file"));
  ASSERT_EQ(mkfifo((folder_ / "pipe.gguf").c_str(), 0600), 0);
  EXPECT_THAT(read_error(folder_ / "pipe.gguf", ErrorCode::kInvalidArgument),
              HasSubstr("a special file"));
  GgufBytes::write_bytes(folder_ / "empty.gguf", {});
  EXPECT_THAT(read_error(folder_ / "empty.gguf", ErrorCode::kCorrupt), HasSubstr("is empty"));
  std::filesystem::create_symlink(folder_ / "nowhere", folder_ / "dangling.gguf");
  read_error(folder_ / "dangling.gguf", ErrorCode::kNotFound);
  read_error(folder_ / "m.gguf" / "below-a-file", ErrorCode::kNotFound);
}

TEST_F(GgufFileOnDisk, JoinsTheParts) {
  for (const size_t n_parts : {2U, 3U}) {
    const auto first = small_file().write_split(folder_ / "m", n_parts);
    const auto file = GgufFile::open(first);
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(file->n_parts(), n_parts);
    ASSERT_EQ(file->tensors().size(), 3U);
    EXPECT_EQ(file->tensors()[0].name, "first");
    EXPECT_EQ(file->find_tensor("third")->part, n_parts - 1);
    const std::vector<uint8_t> bytes = small_file().bytes();
    const GgufFile whole = parse(bytes);
    for (const TensorInfo& tensor : whole.tensors()) {
      const auto expected = whole.tensor_bytes(tensor);
      const auto found = file->tensor_bytes(*file->find_tensor(tensor.name));
      EXPECT_TRUE(std::ranges::equal(found, expected)) << tensor.name;
    }
    EXPECT_EQ(file->find_string("text"), "some text");
  }
}

TEST_F(GgufFileOnDisk, OnePartOfOneIsAWholeFile) {
  const auto first = small_file().write_split(folder_ / "m", 1);
  EXPECT_TRUE(GgufFile::open(first));
  // Whatever its name.
  std::filesystem::rename(first, folder_ / "renamed.gguf");
  EXPECT_TRUE(GgufFile::open(folder_ / "renamed.gguf"));
}

TEST_F(GgufFileOnDisk, RefusesAMissingPart) {
  const auto first = small_file().write_split(folder_ / "m", 3);
  std::filesystem::remove(folder_ / part(2, 3));
  const auto file = GgufFile::open(first);
  expect_error(file, ErrorCode::kNotFound, {part(2, 3), "part 2 of 3", "cannot open"});
}

TEST_F(GgufFileOnDisk, RefusesAnotherPartThanTheFirst) {
  small_file().write_split(folder_ / "m", 3);
  EXPECT_THAT(read_error(folder_ / part(2, 3), ErrorCode::kInvalidArgument),
              HasSubstr("part 2 of 3, expected the first one, '" + part(1, 3)));
}

TEST_F(GgufFileOnDisk, RefusesARenamedFirstPart) {
  const auto first = small_file().write_split(folder_ / "m", 3);
  std::filesystem::rename(first, folder_ / "renamed.gguf");
  EXPECT_THAT(read_error(folder_ / "renamed.gguf", ErrorCode::kInvalidArgument),
              HasSubstr("part 1 of 3, expected a file name that ends in '-00001-of-00003.gguf'"));
}

TEST_F(GgufFileOnDisk, RefusesPartsInTheWrongOrder) {
  const auto first = small_file().write_split(folder_ / "m", 3);
  std::filesystem::rename(folder_ / part(2, 3), folder_ / "x");
  std::filesystem::rename(folder_ / part(3, 3), folder_ / part(2, 3));
  std::filesystem::rename(folder_ / "x", folder_ / part(3, 3));
  expect_error(GgufFile::open(first), ErrorCode::kCorrupt,
               {part(2, 3), "part 2 of 3: ", "this is part 3 of 3"});
}

TEST_F(GgufFileOnDisk, RefusesAPartOfAnotherModel) {
  const auto first = small_file().write_split(folder_ / "m", 2);
  small_file().write(folder_ / part(2, 2));  // says nothing of parts
  expect_error(GgufFile::open(first), ErrorCode::kCorrupt,
               {part(2, 2), "key 'split.no': found nothing"});
  GgufBytes other;
  other.key("split.no", uint16_t{1}).key("split.count", uint16_t{3});
  other.write(folder_ / part(2, 2));
  expect_error(GgufFile::open(first), ErrorCode::kCorrupt,
               {part(2, 2), "part 2 of 2: ", "this is part 2 of 3"});
  GgufBytes::write_bytes(folder_ / part(2, 2), std::vector<uint8_t>(64, 0));
  expect_error(GgufFile::open(first), ErrorCode::kCorrupt, {part(2, 2), "not a GGUF file"});
}

TEST_F(GgufFileOnDisk, RefusesATensorThatIsInTwoParts) {
  const auto first = small_file().write_split(folder_ / "m", 2);
  GgufBytes second;
  second.key("split.no", uint16_t{1}).key("split.count", uint16_t{2});
  second.add({.name = "first"}).write(folder_ / part(2, 2));
  expect_error(GgufFile::open(first), ErrorCode::kCorrupt,
               {part(2, 2), "tensor 'first' is in an earlier part as well"});
}

TEST_F(GgufFileOnDisk, RefusesAWrongNumberOfTensors) {
  const auto first = small_file().write_split(folder_ / "m", 2);
  GgufBytes second;
  second.key("split.no", uint16_t{1}).key("split.count", uint16_t{2});
  second.add({.name = "second"}).write(folder_ / part(2, 2));
  expect_error(GgufFile::open(first), ErrorCode::kCorrupt,
               {"m-00001-of-00002.gguf", "found 2 tensors in 2 parts, expected 3"});
}

TEST_F(GgufFileOnDisk, RefusesBadSplitKeys) {
  const auto expect = [&](GgufBytes file, ErrorCode code, const std::string& message) {
    file.write(folder_ / part(1, 2));
    EXPECT_THAT(read_error(folder_ / part(1, 2), code), HasSubstr(message));
  };
  expect(GgufBytes().key("split.count", 2), ErrorCode::kCorrupt, "key 'split.no': found nothing");
  expect(GgufBytes().key("split.count", 2).key("split.no", 0), ErrorCode::kCorrupt,
         "key 'split.tensors.count': found nothing");
  expect(GgufBytes().key("split.count", -1), ErrorCode::kCorrupt, "found -1, expected 0 to 99999");
  expect(GgufBytes().key("split.count", 100000), ErrorCode::kCorrupt, "found 100000");
  expect(GgufBytes().key("split.count", "two"), ErrorCode::kCorrupt, "found str");
  expect(GgufBytes().key("split.count", 2).key("split.no", 2).key("split.tensors.count", 0),
         ErrorCode::kCorrupt, "found part 3 of 2");
}

}  // namespace
}  // namespace hotset::model
