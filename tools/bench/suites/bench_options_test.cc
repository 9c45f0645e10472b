#include "gradwire/tools/bench/suites/bench_options.h"

#include "gmock/gmock.h"
#include "gradwire/tools/bench/suites/case_name.h"
#include "gtest/gtest.h"

namespace gradwire::bench {
namespace {

using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::Not;

TEST(CaseName, HasAnOperationAndASizeOrACount) {
  EXPECT_EQ(parse_case("echo_64KiB").operation, "echo");
  EXPECT_EQ(parse_case("echo_64KiB").bytes, 65536);
  EXPECT_EQ(parse_case("push_pull_1MiB").operation, "push_pull");
  EXPECT_EQ(parse_case("all_to_all_8").operation, "all_to_all");
  EXPECT_EQ(parse_case("all_to_all_8").count, 8);
  EXPECT_EQ(parse_case("add2_cold").operation, "add2_cold");
  EXPECT_EQ(parse_case("all_reduce_2_ranks_8B").operation, "all_reduce_2_ranks");
  EXPECT_EQ(parse_case("all_reduce_2_ranks_8B").bytes, 8);
  EXPECT_EQ(parse_case("echo_99999999999MiB").bytes, 0);
  EXPECT_EQ(parse_case("echo_-1MiB").bytes, 0);
}

TEST(BenchOptions, AllSuitesMeansEveryOneInOrder) {
  const auto options = complete_options({.suites = {"all"}});
  ASSERT_TRUE(options.ok());
  // Without "cuda", which needs a GPU.
  EXPECT_EQ(options->suites.size(), suites().size() - 1);
  EXPECT_THAT(options->suites, Not(Contains("cuda")));
  EXPECT_THAT(complete_options({.suites = {"all", "cuda"}})->suites, Contains("cuda"));
  EXPECT_THAT(options->cases, Contains(Field(&CaseSpec::name, "set_get")));
  EXPECT_THAT(options->cases, Not(Contains(Field(&CaseSpec::name, "all_to_all_64"))));
}

TEST(BenchOptions, NamedCasesAreTheOnlyOnes) {
  const auto options = complete_options({.suites = {"rpc", "scale"}, .cases = {"all_to_all_64", "add2"}});
  ASSERT_TRUE(options.ok());
  EXPECT_THAT(options->cases,
              ElementsAre(Field(&CaseSpec::name, "add2"), Field(&CaseSpec::name, "all_to_all_64")));
}

TEST(BenchOptions, OtherSizesOfAKnownCaseWork) {
  const auto options = complete_options({.suites = {"rpc"}, .cases = {"echo_256KiB"}});
  ASSERT_TRUE(options.ok());
  ASSERT_EQ(options->cases.size(), 1u);
  EXPECT_EQ(options->cases[0].bytes_per_call, 2 * 256 * 1024);
}

TEST(BenchOptions, AnErrorOfAnUnknownNameListsTheKnownNames) {
  EXPECT_THAT(complete_options({.suites = {"rcp"}}).status().message(),
              HasSubstr("expected one of transport, rpc"));
  EXPECT_THAT(complete_options({.suites = {"rpc"}, .peers = {"ray"}}).status().message(), HasSubstr("torch"));
  EXPECT_THAT(complete_options({.suites = {"rpc"}, .cases = {"push_pull_2MiB"}}).status().message(),
              HasSubstr("add2"));
  EXPECT_FALSE(complete_options({.suites = {"rpc"}, .transports = {"ucx"}}).ok());
  EXPECT_FALSE(complete_options({.suites = {"rpc"}, .seconds = 0}).ok());
  EXPECT_FALSE(complete_options({.suites = {"rpc"}, .rounds = 0}).ok());
}

TEST(Cases, EveryRoleBelongsToASuiteWithGradwire) {
  for (const RoleSpec& role : roles()) {
    EXPECT_THAT(suites(), Contains(role.suite));
    for (const std::string& transport : role.transports) {
      EXPECT_THAT(transports_of(role.suite), Contains(transport)) << role.role;
    }
  }
}

TEST(Cases, TrainingCasesHaveOneTrainerMoreThanTheirNumberOfWorkers) {
  const auto options = complete_options({.suites = {"autograd"}});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_THAT(options->cases, Each(Field(&CaseSpec::kind, CaseKind::kTraining)));
  ASSERT_THAT(options->cases,
              ElementsAre(Field(&CaseSpec::name, "remote_add"), Field(&CaseSpec::name, "chain_4"),
                          Field(&CaseSpec::name, "fanout_8"), Field(&CaseSpec::name, "mlp_2")));
  EXPECT_EQ(options->cases[0].members, 2);
  for (std::size_t i = 1; i < options->cases.size(); ++i) {
    EXPECT_EQ(options->cases[i].members, parse_case(options->cases[i].name).count + 1);
  }
}

TEST(Cases, CollectivesHaveTwoAndFourRanks) {
  const auto options = complete_options({.suites = {"collectives"}, .peers = {"openmpi", "gloo"}});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_THAT(options->cases, Each(Field(&CaseSpec::kind, CaseKind::kTogether)));
  for (const char* name : {"all_reduce_2_ranks_8B", "all_reduce_4_ranks_64MiB", "barrier_4_ranks",
                           "send_recv_2_ranks_8B", "all_to_all_4_ranks_4MiB"}) {
    EXPECT_THAT(options->cases, Contains(Field(&CaseSpec::name, name)));
  }
  for (const CaseSpec& spec : options->cases) {
    EXPECT_THAT(spec.name, HasSubstr("_" + std::to_string(spec.members) + "_ranks"));
  }
  const auto other = complete_options({.suites = {"collectives"}, .cases = {"all_reduce_4_ranks_256KiB"}});
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(other->cases[0].members, 4);
  EXPECT_EQ(other->cases[0].bytes_per_call, 256 << 10);
}

TEST(BenchOptions, GroupsOfOtherSizesWork) {
  const auto options = complete_options({.suites = {"scale"}, .cases = {"all_to_all_3"}});
  ASSERT_TRUE(options.ok()) << options.status();
  ASSERT_EQ(options->cases.size(), 1u);
  EXPECT_EQ(options->cases[0].name, "all_to_all_3");
  EXPECT_EQ(options->cases[0].members, 3);
  EXPECT_FALSE(complete_options({.suites = {"scale"}, .cases = {"all_to_all_1"}}).ok());
}

}  // namespace
}  // namespace gradwire::bench
