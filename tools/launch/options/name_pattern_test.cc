#include "gradwire/tools/launch/options/name_pattern.h"

#include <gtest/gtest.h>

namespace gradwire::tools {
namespace {

const WorkerPlace kPlace = {.rank = 5, .local_rank = 1, .role = "trainer", .role_rank = 3};

TEST(NamePattern, FieldsAreFilledIn) {
  EXPECT_EQ(expand_name_pattern("worker{rank}", kPlace), "worker5");
  EXPECT_EQ(expand_name_pattern("{role}{role_rank}", kPlace), "trainer3");
  EXPECT_EQ(expand_name_pattern("/keys/{local_rank}/{rank}-{rank}.pem", kPlace), "/keys/1/5-5.pem");
  EXPECT_EQ(expand_name_pattern("alone", kPlace), "alone");
  EXPECT_EQ(expand_name_pattern("", kPlace), "");
}

TEST(NamePattern, MalformedOnesAreNamed) {
  for (const char* good : {"", "a", "{rank}", "a{role}b{role_rank}c"}) {
    EXPECT_TRUE(check_name_pattern(good).ok()) << good;
  }
  for (const auto& [bad, part] :
       {std::pair("a{Rank}b", "\"{Rank}\""), std::pair("{rank", "\"{rank\""), std::pair("rank}", "\"}\""),
        std::pair("{}", "\"{}\""), std::pair("{rank}{x}", "\"{x}\"")}) {
    const absl::Status status = check_name_pattern(bad);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_NE(status.message().find(part), status.message().npos) << status;
    EXPECT_NE(status.message().find("{role_rank}"), status.message().npos) << status;
  }
}

TEST(NamePattern, RankFieldsAreFound) {
  EXPECT_TRUE(has_rank_field("worker{rank}"));
  EXPECT_TRUE(has_rank_field("{role}{role_rank}"));
  EXPECT_FALSE(has_rank_field("{role}"));
  EXPECT_FALSE(has_rank_field("worker"));
}

}  // namespace
}  // namespace gradwire::tools
