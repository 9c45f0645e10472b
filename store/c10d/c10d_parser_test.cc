#include "gradwire/store/c10d/c10d_parser.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire::store {
namespace {

using ::testing::ElementsAre;

std::string query_of(C10dQuery code) { return std::string(1, static_cast<char>(code)); }

std::string number_bytes(uint64_t value, int size = 8) {
  std::string bytes;
  put_c10d_number(bytes, value, size);
  return bytes;
}

std::string text_bytes(absl::string_view value) {
  std::string bytes;
  put_c10d_string(bytes, value);
  return bytes;
}

// All requests in `bytes`, given `step` bytes at a time.
std::vector<C10dRequest> parse(const std::string& bytes, std::size_t step) {
  C10dParser parser;
  std::vector<C10dRequest> requests;
  for (std::size_t at = 0; at < bytes.size(); at += step) {
    absl::string_view part = absl::string_view(bytes).substr(at, step);
    while (true) {
      C10dRequest request;
      const absl::StatusOr<bool> complete = parser.read(part, request);
      EXPECT_TRUE(complete.ok()) << complete.status();
      if (!complete.ok() || !*complete) break;
      requests.push_back(std::move(request));
    }
    EXPECT_TRUE(part.empty());
  }
  EXPECT_TRUE(parser.between_requests());
  return requests;
}

absl::Status error_of(const std::string& bytes) {
  C10dParser parser;
  C10dRequest request;
  absl::string_view rest = bytes;
  while (true) {
    const absl::StatusOr<bool> complete = parser.read(rest, request);
    if (!complete.ok()) return complete.status();
    if (!*complete) return absl::OkStatus();
  }
}

TEST(C10dParser, EveryQueryIsReadAlsoByteByByte) {
  const std::string bytes =
      query_of(C10dQuery::kValidate) + number_bytes(kC10dMagic, 4) + query_of(C10dQuery::kSet) +
      text_bytes("/k") + text_bytes("") + query_of(C10dQuery::kCompareSet) + text_bytes("/k") +
      text_bytes("a") + text_bytes("b") + query_of(C10dQuery::kGet) + text_bytes("/k") +
      query_of(C10dQuery::kAdd) + text_bytes("init/") + number_bytes(static_cast<uint64_t>(-3)) +
      query_of(C10dQuery::kCheck) + number_bytes(2) + text_bytes("/a") + text_bytes("/b") +
      query_of(C10dQuery::kWait) + number_bytes(0) + query_of(C10dQuery::kNumKeys) +
      query_of(C10dQuery::kDeleteKey) + text_bytes("") + query_of(C10dQuery::kAppend) + text_bytes("/k") +
      text_bytes("x") + query_of(C10dQuery::kMultiGet) + number_bytes(1) + text_bytes("/k") +
      query_of(C10dQuery::kMultiSet) + number_bytes(2) + text_bytes("/a") + text_bytes("1") +
      text_bytes("/b") + text_bytes("2") + query_of(C10dQuery::kCancelWait) + query_of(C10dQuery::kPing) +
      number_bytes(0xFFFFFFFF, 4) + query_of(C10dQuery::kQueuePush) + text_bytes("/q") + text_bytes("i") +
      query_of(C10dQuery::kQueuePop) + text_bytes("/q") + query_of(C10dQuery::kQueueLen) + text_bytes("/q") +
      query_of(C10dQuery::kListKeys);
  for (const std::size_t step : {std::size_t{1}, std::size_t{3}, bytes.size()}) {
    const std::vector<C10dRequest> requests = parse(bytes, step);
    ASSERT_EQ(requests.size(), 18);
    for (std::size_t i = 0; i < requests.size(); ++i)
      EXPECT_EQ(static_cast<std::size_t>(requests[i].query), i);
    EXPECT_EQ(requests[0].number, kC10dMagic);
    EXPECT_THAT(requests[1].strings, ElementsAre("/k", ""));
    EXPECT_THAT(requests[2].strings, ElementsAre("/k", "a", "b"));
    EXPECT_EQ(static_cast<int64_t>(requests[4].number), -3);
    EXPECT_THAT(requests[5].strings, ElementsAre("/a", "/b"));
    EXPECT_THAT(requests[6].strings, ElementsAre());
    EXPECT_THAT(requests[11].strings, ElementsAre("/a", "1", "/b", "2"));
    EXPECT_EQ(requests[13].number, 0xFFFFFFFF);
  }
}

TEST(C10dParser, UnknownQueryIsInvalid) {
  EXPECT_TRUE(absl::IsInvalidArgument(error_of(std::string(1, 18))));
  EXPECT_TRUE(absl::IsInvalidArgument(error_of("GET / HTTP/1.1\r\n")));
}

// Before any of the bytes has arrived.
TEST(C10dParser, LengthsOverTheLimitsAreRefusedAtOnce) {
  const uint64_t huge = ~uint64_t{0};
  EXPECT_TRUE(absl::IsResourceExhausted(error_of(query_of(C10dQuery::kGet) + number_bytes(huge))));
  EXPECT_TRUE(
      absl::IsResourceExhausted(error_of(query_of(C10dQuery::kGet) + number_bytes(kMaxC10dKeyBytes + 1))));
  EXPECT_TRUE(error_of(query_of(C10dQuery::kGet) + number_bytes(kMaxC10dKeyBytes)).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(
      error_of(query_of(C10dQuery::kSet) + text_bytes("/k") + number_bytes(kMaxValueBytes + 1))));
  EXPECT_TRUE(error_of(query_of(C10dQuery::kSet) + text_bytes("/k") + number_bytes(kMaxValueBytes)).ok());
  for (const C10dQuery code :
       {C10dQuery::kCheck, C10dQuery::kWait, C10dQuery::kMultiGet, C10dQuery::kMultiSet}) {
    EXPECT_TRUE(absl::IsResourceExhausted(error_of(query_of(code) + number_bytes(huge))));
    EXPECT_TRUE(absl::IsResourceExhausted(error_of(query_of(code) + number_bytes(kMaxKeysPerWait + 1))));
    EXPECT_TRUE(error_of(query_of(code) + number_bytes(kMaxKeysPerWait)).ok());
  }
  // The second string of a pair is a value, the first one a key.
  EXPECT_TRUE(absl::IsResourceExhausted(
      error_of(query_of(C10dQuery::kMultiSet) + number_bytes(1) + number_bytes(kMaxC10dKeyBytes + 1))));
  EXPECT_TRUE(error_of(query_of(C10dQuery::kMultiSet) + number_bytes(1) + text_bytes("/k") +
                       number_bytes(kMaxC10dKeyBytes + 1))
                  .ok());
}

TEST(C10dParser, ListIsBoundedAsAWhole) {
  std::string bytes = query_of(C10dQuery::kMultiSet) + number_bytes(3);
  const std::string half(kMaxC10dListBytes / 2, 'v');
  bytes += text_bytes("/a") + text_bytes(half) + text_bytes("/b");
  EXPECT_TRUE(error_of(bytes).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(error_of(bytes + number_bytes(half.size()))));
}

}  // namespace
}  // namespace gradwire::store
