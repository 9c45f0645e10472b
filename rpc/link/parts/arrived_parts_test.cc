#include "gradwire/rpc/link/parts/arrived_parts.h"

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace gradwire::rpc {
namespace {

transport::Buffer buffer(const std::string& bytes) {
  auto owner = std::make_shared<std::string>(bytes);
  return transport::Buffer(owner->data(), owner->size(), owner);
}

// A buffer that claims to have `size` bytes, which nobody reads.
transport::Buffer large(std::size_t size) {
  static char byte = 0;
  return transport::Buffer(&byte, size, nullptr);
}

std::string text(const std::vector<transport::Buffer>& buffers) {
  std::string all;
  for (const transport::Buffer& each : buffers)
    all += std::string(static_cast<const char*>(each.data()), each.size()) + ",";
  return all;
}

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

TEST(ArrivedParts, TheBuffersOfAMessageAreJoinedInOrder) {
  ArrivedParts parts;
  EXPECT_TRUE(parts.add(1, {buffer("a"), buffer("b")}).ok());
  EXPECT_TRUE(parts.add(2, {buffer("x")}).ok());
  EXPECT_TRUE(parts.add(1, {buffer("c")}).ok());
  EXPECT_EQ(parts.size(), 2u);
  const auto first = parts.join(1, {buffer("d"), buffer("e")});
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(text(*first), "a,b,c,d,e,");
  const auto second = parts.join(2, {});
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(text(*second), "x,");
  EXPECT_EQ(parts.size(), 0u);
}

TEST(ArrivedParts, AMessageIsJoinedOrDroppedOnce) {
  ArrivedParts parts;
  EXPECT_EQ(parts.join(1, {}).status().code(), kInvalid);
  EXPECT_EQ(parts.drop(1).code(), kInvalid);
  EXPECT_TRUE(parts.add(1, {buffer("a")}).ok());
  EXPECT_TRUE(parts.drop(1).ok());
  EXPECT_EQ(parts.join(1, {}).status().code(), kInvalid);
  EXPECT_TRUE(parts.add(2, {buffer("a")}).ok());
  parts.clear();
  EXPECT_EQ(parts.size(), 0u);
  EXPECT_EQ(parts.join(2, {}).status().code(), kInvalid);
}

TEST(ArrivedParts, PartsWithoutANumberOrBuffersAreRefused) {
  ArrivedParts parts;
  EXPECT_EQ(parts.add(0, {buffer("a")}).code(), kInvalid);
  EXPECT_EQ(parts.add(1, {}).code(), kInvalid);
  EXPECT_EQ(parts.size(), 0u);
}

TEST(ArrivedParts, BytesAreBounded) {
  ArrivedParts parts;
  EXPECT_TRUE(parts.add(1, {large(PartsInFlight::kMaxBytes - 1)}).ok());
  EXPECT_EQ(parts.add(2, {large(2)}).code(), kInvalid);
  // A size near the largest number must not wrap around.
  EXPECT_EQ(parts.add(2, {large(~std::size_t{0})}).code(), kInvalid);
  EXPECT_TRUE(parts.add(2, {large(1)}).ok());
  EXPECT_TRUE(parts.drop(1).ok());
  EXPECT_TRUE(parts.add(3, {large(PartsInFlight::kMaxBytes - 1)}).ok());
}

TEST(ArrivedParts, MessagesAreBounded) {
  ArrivedParts parts;
  for (uint64_t number = 1; number <= PartsInFlight::kMaxMessages; ++number)
    EXPECT_TRUE(parts.add(number, {large(1)}).ok());
  EXPECT_EQ(parts.add(1000, {large(1)}).code(), kInvalid);
  EXPECT_TRUE(parts.add(1, {large(1)}).ok());
  EXPECT_TRUE(parts.join(1, {}).ok());
  EXPECT_TRUE(parts.add(1000, {large(1)}).ok());
}

TEST(ArrivedParts, BuffersAreBounded) {
  ArrivedParts parts;
  EXPECT_TRUE(parts.add(1, std::vector<transport::Buffer>(PartsInFlight::kMaxBuffers, large(0))).ok());
  EXPECT_EQ(parts.add(1, {large(0)}).code(), kInvalid);
  EXPECT_TRUE(parts.join(1, {large(0)}).ok());
  EXPECT_TRUE(parts.add(1, {large(0)}).ok());
}

}  // namespace
}  // namespace gradwire::rpc
