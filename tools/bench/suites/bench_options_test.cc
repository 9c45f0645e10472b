#include "gradwire/tools/bench/suites/bench_options.h"

#include <map>
#include <set>

#include "gmock/gmock.h"
#include "gradwire/tools/bench/suites/case_name.h"
#include "gtest/gtest.h"

namespace gradwire::bench {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

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

TEST(BenchOptions, OtherIntervalsAndNumbersOfProcessesWork) {
  const auto options = complete_options(
      {.suites = {"rpc"},
       .cases = {"add2_every_1ms", "add2_every_50us_8_per_core", "push_pull_1MiB_every_5ms_2_per_core"}});
  ASSERT_TRUE(options.ok()) << options.status();
  ASSERT_EQ(options->cases.size(), 3u);
  EXPECT_THAT(options->cases, Each(Field(&CaseSpec::kind, CaseKind::kCadence)));
  EXPECT_EQ(options->cases[0].members, 2);
  EXPECT_EQ(options->cases[0].callers, 1);
  EXPECT_EQ(options->cases[1].members, 16);
  EXPECT_EQ(options->cases[1].callers, 8);
  EXPECT_EQ(options->cases[2].members, 4);
  EXPECT_EQ(options->cases[2].bytes_per_call, 2 << 20);
  EXPECT_FALSE(complete_options({.suites = {"rpc"}, .cases = {"echo_1MiB_every_2ms"}}).ok());
  EXPECT_FALSE(complete_options({.suites = {"rpc"}, .cases = {"push_pull_2MiB_every_2ms"}}).ok());
  EXPECT_FALSE(complete_options({.suites = {"store"}, .cases = {"add2_every_1ms"}}).ok());
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

TEST(Cases, OnlyTheCrowdedCadencesOfOneShortAndOneLongIntervalRunOnRequest) {
  std::vector<std::string> always, on_request;
  for (const CaseSpec& spec : cases()) {
    if (spec.kind != CaseKind::kCadence) continue;
    EXPECT_EQ(spec.members, 2 * parse_case(spec.name).per_core) << spec.name;
    EXPECT_EQ(spec.callers, parse_case(spec.name).per_core) << spec.name;
    (spec.on_request ? on_request : always).push_back(spec.name);
  }
  EXPECT_THAT(on_request, ElementsAre("add2_every_200us_2_per_core", "add2_every_200us_4_per_core",
                                      "add2_every_10ms_2_per_core", "add2_every_10ms_4_per_core"));
  EXPECT_THAT(always, IsSupersetOf({"add2_every_200us", "add2_every_500us_2_per_core", "add2_every_10ms",
                                    "add2_every_2ms_4_per_core", "push_pull_1MiB_every_2ms_4_per_core"}));
}

TEST(Cases, ASystemSupportsACaseOnlyWithWhatItsCallersDoBetweenCalls) {
  std::map<std::string, std::set<std::string>> systems;
  for (const CaseSpec& spec : cases()) {
    for (const RoleSpec& role : roles()) {
      if (spec.suite == "rpc" && supports(role, spec)) systems[spec.name].insert(role.role);
    }
  }
  EXPECT_THAT(systems["add2"], UnorderedElementsAre("gradwire_rpc", "torch_rpc", "grpc", "floor_futex",
                                                    "floor_spin", "floor_tcp", "floor_tcp_spin"));
  EXPECT_THAT(systems["add2_cold"], UnorderedElementsAre("gradwire_rpc", "torch_rpc", "grpc", "floor_futex",
                                                         "floor_wake", "floor_tcp"));
  EXPECT_THAT(systems["add2_every_2ms"],
              UnorderedElementsAre("gradwire_rpc", "torch_rpc", "grpc", "floor_wake"));
  EXPECT_EQ(systems["add2_every_2ms_4_per_core"], systems["add2_every_2ms"]);
  EXPECT_THAT(systems["push_pull_1MiB_every_2ms"],
              UnorderedElementsAre("gradwire_rpc", "torch_rpc", "floor_handoff"));
  EXPECT_THAT(systems["push_pull_1MiB_every_2ms_2_per_core"],
              UnorderedElementsAre("gradwire_rpc", "torch_rpc"));
  EXPECT_EQ(systems["null"], systems["add2"]);
  EXPECT_THAT(systems["inflight_null"], UnorderedElementsAre("gradwire_rpc", "torch_rpc", "grpc"));
  EXPECT_THAT(systems["stream_8B"], UnorderedElementsAre("gradwire_rpc", "grpc"));
  EXPECT_THAT(systems["train_step"], UnorderedElementsAre("gradwire_rpc", "torch_rpc"));
  EXPECT_THAT(systems["lend_64MiB"], UnorderedElementsAre("gradwire_rpc", "torch_rpc", "floor_memcpy"));
}

TEST(Cases, TwoTrainersShareAParameterServer) {
  const auto options = complete_options({.suites = {"rpc"}, .cases = {"train_step"}});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->cases[0].members, 3);
  EXPECT_EQ(options->cases[0].callers, 2);
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

TEST(BenchOptions, OtherCountsWork) {
  const auto options = complete_options({.suites = {"scale"}, .cases = {"all_to_all_3"}});
  ASSERT_TRUE(options.ok()) << options.status();
  ASSERT_EQ(options->cases.size(), 1u);
  EXPECT_EQ(options->cases[0].name, "all_to_all_3");
  EXPECT_EQ(options->cases[0].members, 3);
  EXPECT_FALSE(complete_options({.suites = {"scale"}, .cases = {"all_to_all_1"}}).ok());
  const auto clients = complete_options({.suites = {"scale"}, .cases = {"clients_50"}});
  ASSERT_TRUE(clients.ok()) << clients.status();
  EXPECT_EQ(clients->cases.at(0).name, "clients_50");
  EXPECT_EQ(clients->cases[0].members, 9);
  EXPECT_EQ(clients->cases[0].callers, 8);
  EXPECT_FALSE(complete_options({.suites = {"scale"}, .cases = {"clients_7"}}).ok());
  EXPECT_FALSE(complete_options({.suites = {"scale"}, .cases = {"clients_5000"}}).ok());
  const auto losses = complete_options({.suites = {"rref"}, .cases = {"lose_1000"}});
  ASSERT_TRUE(losses.ok()) << losses.status();
  EXPECT_EQ(losses->cases.at(0).name, "lose_1000");
  EXPECT_FALSE(complete_options({.suites = {"rref"}, .cases = {"lose_9"}}).ok());
  EXPECT_FALSE(complete_options({.suites = {"autograd"}, .cases = {"chain_5"}}).ok());
}

}  // namespace
}  // namespace gradwire::bench
