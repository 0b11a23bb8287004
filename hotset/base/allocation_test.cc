#include "hotset/base/allocation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

namespace hotset {
namespace {

using testing::HasSubstr;

TEST(Allocation, WhatIsThereIsExpected) {
  EXPECT_TRUE(expect_memory("a list"));
  EXPECT_TRUE(expect_memory("a buffer", Bytes{1 << 20}));
}

TEST(Allocation, MoreThanAnAddressSpaceIsRefusedByName) {
  const Status status = expect_memory("the weights", Bytes{INT64_MAX / 2});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kOutOfMemory);
  EXPECT_THAT(status.error().message, HasSubstr("the weights: the system refused"));
}

TEST(Allocation, AGateRefuses) {
  std::vector<std::string> asked;
  set_allocation_gate([&](std::string_view what) {
    asked.emplace_back(what);
    return asked.size() != 2;
  });
  EXPECT_TRUE(expect_memory("a"));
  const Status second = expect_memory("b");
  EXPECT_TRUE(expect_memory("c"));
  set_allocation_gate({});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kOutOfMemory);
  EXPECT_THAT(second.error().message, HasSubstr("b: "));
  EXPECT_THAT(asked, testing::ElementsAre("a", "b", "c"));
}

TEST(Allocation, WhatIsThrownForWantOfMemoryIsAnError) {
  EXPECT_EQ(catching_refusal("x", [] { return Result<int>(3); }), 3);
  const auto code_of = [](const auto& call) {
    const Status status = catching_refusal("x", call);
    return status ? ErrorCode::kInternal : status.error().code;
  };
  EXPECT_EQ(code_of([]() -> Status { throw std::bad_alloc(); }), ErrorCode::kOutOfMemory);
  EXPECT_EQ(code_of([]() -> Status { throw std::length_error("vector"); }),
            ErrorCode::kOutOfMemory);
  EXPECT_EQ(
      code_of([]() -> Status {
        throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
      }),
      ErrorCode::kOutOfMemory)
      << "a thread that cannot be started";
  EXPECT_EQ(code_of([]() -> Status { return make_error(ErrorCode::kIo, "x"); }), ErrorCode::kIo);
  EXPECT_THROW((void)code_of([]() -> Status { throw std::logic_error("a bug"); }),
               std::logic_error);
}

}  // namespace
}  // namespace hotset
