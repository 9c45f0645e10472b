#include "gradwire/store/init/init_method.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/free_port.h"
#include "gradwire/base/random_id.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/store/init/init_url.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/store/tcp_store_server.h"
#include "gtest/gtest.h"

namespace gradwire::store {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(60);

struct Member {
  std::string method;
  int rank = kUnknownRank;
  int world_size = kUnknownWorldSize;
  RendezvousOptions options = {.timeout = kTimeout, .group_name = "", .security = {.insecure = true}};
};

// Runs the members at the same time, each on a thread, and keeps their results until all have ended.
std::vector<absl::StatusOr<Rendezvous>> meet(const std::vector<Member>& members) {
  std::vector<absl::StatusOr<Rendezvous>> results(members.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < members.size(); ++i) {
    threads.emplace_back([&, i] {
      results[i] = rendezvous(members[i].method, members[i].rank, members[i].world_size, members[i].options);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

// Expects that all met, with ranks 0..n-1, in one store that is empty at first.
void expect_met(std::vector<absl::StatusOr<Rendezvous>> results) {
  std::vector<int> ranks;
  for (absl::StatusOr<Rendezvous>& result : results) {
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->world_size, results.size());
    EXPECT_EQ(result->store->num_keys(), 0);
    ranks.push_back(result->rank);
  }
  std::sort(ranks.begin(), ranks.end());
  for (std::size_t i = 0; i < ranks.size(); ++i) EXPECT_EQ(ranks[i], i);
  results.front()->store->set("from the first", "hello");
  EXPECT_EQ(results.back()->store->get("from the first"), "hello");
}

class Environment {
 public:
  explicit Environment(const std::vector<std::pair<const char*, std::string>>& variables) {
    for (const char* name : kNames) unsetenv(name);
    for (const auto& [name, value] : variables) setenv(name, value.c_str(), 1);
  }
  ~Environment() {
    for (const char* name : kNames) unsetenv(name);
  }

 private:
  static constexpr const char* kNames[] = {"MASTER_ADDR",
                                           "MASTER_PORT",
                                           "RANK",
                                           "WORLD_SIZE",
                                           "TORCHELASTIC_USE_AGENT_STORE",
                                           "TORCHELASTIC_RESTART_COUNT",
                                           "GRADWIRE_ROUND",
                                           "OMPI_COMM_WORLD_RANK",
                                           "OMPI_COMM_WORLD_SIZE",
                                           "PMI_RANK",
                                           "PMI_SIZE",
                                           "MPI_LOCALRANKID",
                                           "SLURM_STEP_ID",
                                           "SLURM_PROCID",
                                           "SLURM_NTASKS",
                                           "SLURM_STEP_NUM_TASKS"};
};

TEST(InitEnv, NamesEverythingThatIsMissing) {
  Environment environment({});
  const absl::Status status = rendezvous("env://").status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("MASTER_PORT"), HasSubstr("MASTER_ADDR"),
                                                   HasSubstr("RANK"), HasSubstr("WORLD_SIZE")));
  const absl::Status rank_zero = rendezvous("env://", 0, 2).status();
  EXPECT_THAT(std::string(rank_zero.message()),
              AllOf(HasSubstr("lacks MASTER_PORT:"), ::testing::Not(HasSubstr("MASTER_ADDR"))));
}

TEST(InitEnv, VariableThatIsNotANumberIsNamed) {
  Environment environment(
      {{"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "x1"}, {"RANK", "0"}, {"WORLD_SIZE", "1"}});
  EXPECT_THAT(std::string(rendezvous("env://").status().message()), HasSubstr("MASTER_PORT is \"x1\""));
}

TEST(InitEnv, ArgumentsWinOverTheEnvironment) {
  Environment environment({{"MASTER_ADDR", "localhost"},
                           {"MASTER_PORT", absl::StrCat(free_port())},
                           {"RANK", "9"},
                           {"WORLD_SIZE", "10"}});
  expect_met(meet({{"env://", 0, 3}, {"env://", 1, 3}, {"env://?rank=2&world_size=3"}}));
}

TEST(InitEnv, RankZeroNeedsNoAddress) {
  Environment environment({{"MASTER_PORT", absl::StrCat(free_port())}, {"WORLD_SIZE", "1"}, {"RANK", "0"}});
  expect_met(meet({{"env://"}}));
}

TEST(InitEnv, StoreOfTheLauncherServesEveryRestart) {
  std::unique_ptr<TcpStoreServer> launcher = value_or_throw(TcpStoreServer::start({.host = "localhost"}));
  // Twice the same: a group that has ended may form again in a store that outlives it.
  for (const char* attempt : {"0", "0", "1"}) {
    Environment environment({{"MASTER_ADDR", "localhost"},
                             {"MASTER_PORT", absl::StrCat(launcher->port())},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                             {"TORCHELASTIC_RESTART_COUNT", attempt}});
    expect_met(meet({{"env://", 0, 2}, {"env://", 1, 2}}));
  }
}

TEST(InitEnv, RoundsOfTheLauncherDoNotMix) {
  std::unique_ptr<TcpStoreServer> launcher = value_or_throw(TcpStoreServer::start({.host = "localhost"}));
  // The second round is of another size though no restart was counted, and the first one's keys are still
  // there.
  int world_size = 2;
  for (const char* round : {"0", "1"}) {
    Environment environment({{"MASTER_ADDR", "localhost"},
                             {"MASTER_PORT", absl::StrCat(launcher->port())},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                             {"TORCHELASTIC_RESTART_COUNT", "0"},
                             {"GRADWIRE_ROUND", round}});
    std::vector<Member> members;
    for (int rank = 0; rank < world_size; ++rank) members.push_back({"env://", rank, world_size});
    expect_met(meet(members));
    ++world_size;
  }
  TcpStore direct("localhost", launcher->port());
  EXPECT_EQ(direct.get("round_0/rendezvous//0/world_size"), "2");
  EXPECT_EQ(direct.get("round_1/rendezvous//0/world_size"), "3");
}

TEST(InitEnv, RoundThatIsNotANumberIsNamed) {
  Environment environment({{"MASTER_ADDR", "localhost"},
                           {"MASTER_PORT", "1"},
                           {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                           {"GRADWIRE_ROUND", "../1"}});
  EXPECT_THAT(std::string(rendezvous("env://", 0, 1).status().message()), HasSubstr("GRADWIRE_ROUND"));
}

TEST(InitEnv, OtherLaunchersSetRankAndWorldSize) {
  const std::string port = absl::StrCat(free_port());
  using Variables = std::vector<std::pair<const char*, std::string>>;
  for (Variables variables :
       {Variables{{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}},
        Variables{{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}},
        Variables{{"SLURM_STEP_ID", "0"},
                  {"SLURM_PROCID", "0"},
                  {"SLURM_STEP_NUM_TASKS", "1"},
                  {"SLURM_NTASKS", "9"}},
        Variables{{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"PMI_RANK", "0"}},
        Variables{{"RANK", "0"},
                  {"WORLD_SIZE", "1"},
                  {"OMPI_COMM_WORLD_RANK", "3"},
                  {"OMPI_COMM_WORLD_SIZE", "4"}}}) {
    variables.emplace_back("MASTER_PORT", port);
    Environment environment(variables);
    expect_met(meet({{"env://"}}));
  }
}

TEST(InitEnv, SlurmBatchScriptIsNotATask) {
  // A batch script has the variables of the first task, but the other tasks do not run.
  Environment environment({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"MASTER_PORT", "1"}});
  EXPECT_THAT(std::string(rendezvous("env://").status().message()),
              AllOf(HasSubstr("RANK"), HasSubstr("WORLD_SIZE")));
}

TEST(InitTcp, MembersWithAndWithoutRanksMeet) {
  const std::string method = absl::StrCat("tcp://localhost:", free_port());
  expect_met(meet({{method, 1, 3}, {method, 0, 3}, {method, 2, 3}}));
  expect_met(meet({{method, -1, 3}, {method, -1, 3}, {method, -1, 3}}));
}

TEST(InitTcp, TakenPortIsAnErrorForRankZero) {
  std::unique_ptr<TcpStoreServer> other = value_or_throw(TcpStoreServer::start({.host = "localhost"}));
  const absl::Status status = rendezvous(absl::StrCat("tcp://localhost:", other->port()), 0, 1).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(other->port())));
}

TEST(InitTcp, GroupsOfTwoNamesShareAnAddress) {
  const std::string method = absl::StrCat("tcp://localhost:", free_port());
  const RendezvousOptions red{.timeout = kTimeout, .group_name = "red", .security = {.insecure = true}};
  const RendezvousOptions blue{.timeout = kTimeout, .group_name = "red.1", .security = {.insecure = true}};
  std::vector<absl::StatusOr<Rendezvous>> results =
      meet({{method, 0, 2, red}, {method, 1, 2, red}, {method, 0, 1, blue}});
  for (absl::StatusOr<Rendezvous>& result : results) ASSERT_TRUE(result.ok()) << result.status();
  results[0]->store->set("1/key", "red's");
  EXPECT_EQ(results[1]->store->get("1/key"), "red's");
  EXPECT_EQ(results[2]->store->num_keys(), 0);
}

TEST(InitMethods, BadGroupNameIsRefused) {
  for (const std::string& name : {std::string("red/1"), std::string("red blue"), std::string(1 << 20, 'r')}) {
    const RendezvousOptions options{.timeout = kTimeout, .group_name = name};
    const absl::Status by_method = rendezvous("tcp://localhost:1", 0, 1, options).status();
    EXPECT_TRUE(absl::IsInvalidArgument(by_method)) << by_method;
    EXPECT_THAT(std::string(by_method.message()), HasSubstr("bad group name: got \"r"));
    const auto store = std::make_shared<HashStore>();
    const absl::Status by_store = rendezvous(store, 0, 1, options).status();
    EXPECT_TRUE(absl::IsInvalidArgument(by_store)) << by_store;
    EXPECT_EQ(store->num_keys(), 0);
  }
}

TEST(InitTcp, StoreThatGroupsOfTwoNamesShareEndsWithTheLast) {
  const std::string method = absl::StrCat("tcp://localhost:", free_port());
  const RendezvousOptions red{.timeout = kTimeout, .group_name = "red", .security = {.insecure = true}};
  const RendezvousOptions blue{.timeout = kTimeout, .group_name = "blue", .security = {.insecure = true}};
  absl::StatusOr<Rendezvous> first = rendezvous(method, 0, 1, red);
  ASSERT_TRUE(first.ok()) << first.status();
  absl::StatusOr<Rendezvous> second = rendezvous(method, 0, 1, blue);
  ASSERT_TRUE(second.ok()) << second.status();
  first->store = nullptr;
  second->store->set("key", "value");
  EXPECT_EQ(second->store->get("key"), "value");
  second->store = nullptr;
  // The port is free again.
  absl::StatusOr<Rendezvous> third = rendezvous(method, 0, 1);
  EXPECT_TRUE(third.ok()) << third.status();
}

TEST(InitTcp, MissingRankIsNamed) {
  const std::string method = absl::StrCat("tcp://localhost:", free_port());
  const absl::Status status =
      rendezvous(method, 0, 2,
                 {.timeout = absl::Milliseconds(200), .group_name = "", .security = {.insecure = true}})
          .status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 did not arrive"));
}

TEST(InitTcp, OpenGroupWaitsForNobody) {
  const std::string method = absl::StrCat("tcp://localhost:", free_port());
  absl::StatusOr<Rendezvous> first = rendezvous(method, -1, 0);
  absl::StatusOr<Rendezvous> second = rendezvous(method, -1, 0);
  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  EXPECT_EQ(first->rank, 0);
  EXPECT_EQ(second->rank, 1);
}

class InitFile : public ::testing::Test {
 protected:
  ~InitFile() override { std::filesystem::remove(path_); }
  const std::string path_ = absl::StrCat(::testing::TempDir(), "/init-", random_id());
  const std::string method_ = absl::StrCat("file://", path_);
};

TEST_F(InitFile, MembersMeetAgainAndAgainAtOneFile) {
  for (int round = 0; round < 3; ++round) {
    expect_met(meet({{method_, 0, 2}, {method_, 1, 2}}));
    expect_met(meet({{method_, -1, 3}, {method_, -1, 3}, {method_, -1, 3}}));
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(InitFile, FailedAttemptDoesNotHarmTheNext) {
  const RendezvousOptions soon{.timeout = absl::Milliseconds(50), .group_name = ""};
  EXPECT_TRUE(absl::IsDeadlineExceeded(rendezvous(method_, 0, 2, soon).status()));
  expect_met(meet({{method_, 0, 3}, {method_, 1, 3}, {method_, 2, 3}}));
}

TEST_F(InitFile, MissingDirectoryIsNotFound) {
  const absl::Status status = rendezvous("file:///no/such/dir/file", 0, 1).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("directory must exist"));
}

TEST_F(InitFile, ContradictingMemberIsRefused) {
  absl::StatusOr<Rendezvous> open = rendezvous(method_, 0, 1);
  ASSERT_TRUE(open.ok()) << open.status();
  const absl::Status size = rendezvous(method_, 1, 5).status();
  EXPECT_TRUE(absl::IsInvalidArgument(size)) << size;
  EXPECT_THAT(std::string(size.message()), AllOf(HasSubstr("world_size=5"), HasSubstr("world_size=1")));
  const absl::Status rank = rendezvous(method_, 0, 1).status();
  EXPECT_TRUE(absl::IsAlreadyExists(rank)) << rank;
  EXPECT_THAT(std::string(rank.message()), HasSubstr("rank 0"));
  const absl::Status full = rendezvous(method_, -1, 1).status();
  EXPECT_FALSE(full.ok());
}

class InitMulticast : public ::testing::TestWithParam<const char*> {
 protected:
  const std::string method_ = absl::StrCat("tcp://", GetParam(), ":", free_port());
};

TEST_P(InitMulticast, MembersFindOneAnother) {
  expect_met(meet({{method_, -1, 3}, {method_, -1, 3}, {method_, -1, 3}}));
  expect_met(meet({{method_, 1, 2}, {method_, 0, 2}}));
}

TEST_P(InitMulticast, GroupsOfTwoNamesDoNotSeeOneAnother) {
  const RendezvousOptions red{.timeout = kTimeout, .group_name = "red", .security = {.insecure = true}};
  const RendezvousOptions blue{.timeout = kTimeout, .group_name = "blue", .security = {.insecure = true}};
  for (auto& result : meet({{method_, 0, 2, red}, {method_, 1, 2, red}, {method_, 0, 1, blue}})) {
    EXPECT_TRUE(result.ok()) << result.status();
  }
}

TEST_P(InitMulticast, WorldSizesThatDifferAreBothNamed) {
  for (auto& result : meet({{method_, -1, 2}, {method_, -1, 3}})) {
    EXPECT_TRUE(absl::IsInvalidArgument(result.status())) << result.status();
    EXPECT_THAT(std::string(result.status().message()), AllOf(HasSubstr("2"), HasSubstr("3")));
  }
}

TEST_P(InitMulticast, MemberThatStaysAloneTimesOut) {
  const absl::Status status =
      rendezvous(method_, -1, 2,
                 {.timeout = absl::Milliseconds(300), .group_name = "", .security = {.insecure = true}})
          .status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("received announcements of 1 of 2 processes"));
}

TEST_P(InitMulticast, OpenGroupIsFoundByLatecomers) {
  absl::StatusOr<Rendezvous> first = rendezvous(method_, -1, 0, {.security = {.insecure = true}});
  ASSERT_TRUE(first.ok()) << first.status();
  first->store->set("key", "value");
  absl::StatusOr<Rendezvous> second = rendezvous(method_, -1, 0, {.security = {.insecure = true}});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->rank, 1);
  EXPECT_EQ(second->store->get("key"), "value");
}

INSTANTIATE_TEST_SUITE_P(Families, InitMulticast, ::testing::Values("239.255.77.1", "[ff15::4757:1]"),
                         [](const auto& info) { return info.index == 0 ? "Ipv4" : "Ipv6"; });

// An init method under test. Each test uses an address of its own.
struct Meeting {
  std::string name;
  InitUrl::Kind kind;
  bool ranks_are_given = true;
};

class InitMeeting : public ::testing::TestWithParam<Meeting> {
 protected:
  InitMeeting() {
    if (GetParam().kind == InitUrl::Kind::kEnv) {
      environment_.emplace(std::vector<std::pair<const char*, std::string>>{
          {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", absl::StrCat(port_)}});
    }
  }
  ~InitMeeting() override { std::filesystem::remove(path_); }

  std::string method() const {
    switch (GetParam().kind) {
      case InitUrl::Kind::kEnv:
        return "env://";
      case InitUrl::Kind::kTcp:
        return absl::StrCat("tcp://localhost:", port_);
      case InitUrl::Kind::kMulticast:
        return absl::StrCat("tcp://239.255.77.1:", port_);
      default:
        return absl::StrCat("file://", path_);
    }
  }

  Member member(int rank, int world_size) const {
    return {method(),
            GetParam().ranks_are_given ? rank : kUnknownRank,
            world_size,
            {.timeout = kTimeout, .group_name = "world", .security = {.insecure = true}}};
  }

  static absl::Status join_extra(const Member& member) {
    return rendezvous(member.method, member.rank, member.world_size, member.options).status();
  }

  const int port_ = free_port();
  const std::string path_ = absl::StrCat(::testing::TempDir(), "/init-", random_id());
  std::optional<Environment> environment_;
  // An error that is reported at once arrives long before a member's timeout.
  const absl::Time soon_ = absl::Now() + kTimeout / 2;
};

class InitMeetingOfGivenRanks : public InitMeeting {};

TEST_P(InitMeeting, WorldSizeMismatchIsReportedToAll) {
  for (const int first : {2, 3}) {
    for (const auto& result : meet({member(0, first), member(1, 5 - first)})) {
      EXPECT_TRUE(absl::IsInvalidArgument(result.status())) << result.status();
      EXPECT_THAT(std::string(result.status().message()),
                  AllOf(HasSubstr("world size"), HasSubstr("2"), HasSubstr("3")));
    }
    EXPECT_LT(absl::Now(), soon_);
  }
}

TEST_P(InitMeetingOfGivenRanks, RankClaimedTwiceIsReportedToAll) {
  for (const auto& result : meet({member(0, 3), member(1, 3), member(1, 3)})) {
    EXPECT_TRUE(absl::IsAlreadyExists(result.status())) << result.status();
    EXPECT_THAT(std::string(result.status().message()),
                AllOf(HasSubstr("rank 1"), HasSubstr(absl::StrCat("process ", getpid(), " on "))));
  }
  EXPECT_LT(absl::Now(), soon_);
}

TEST_P(InitMeeting, ExtraProcessOfACompleteGroupIsRefusedAtOnce) {
  const std::vector<absl::StatusOr<Rendezvous>> group = meet({member(0, 2), member(1, 2)});
  for (const auto& result : group) ASSERT_TRUE(result.ok()) << result.status();
  for (const int rank : {0, 1}) {
    const absl::Status same = join_extra(member(rank, 2));
    EXPECT_EQ(same.code(), GetParam().ranks_are_given ? absl::StatusCode::kAlreadyExists
                                                      : absl::StatusCode::kFailedPrecondition)
        << same;
    EXPECT_THAT(std::string(same.message()), HasSubstr(absl::StrCat("process ", getpid(), " on ")));
  }
  const absl::Status larger = join_extra(member(2, 3));
  EXPECT_TRUE(absl::IsInvalidArgument(larger)) << larger;
  EXPECT_THAT(std::string(larger.message()), AllOf(HasSubstr("2"), HasSubstr("3")));
  EXPECT_LT(absl::Now(), soon_);
  group[0]->store->set("key", "the group goes on");
  EXPECT_EQ(group[1]->store->get("key"), "the group goes on");
}

const std::vector<Meeting> kWithRanks{{"Env", InitUrl::Kind::kEnv},
                                      {"Tcp", InitUrl::Kind::kTcp},
                                      {"File", InitUrl::Kind::kFile},
                                      {"Multicast", InitUrl::Kind::kMulticast}};
const std::vector<Meeting> kWithoutRanks{{"TcpWithoutRanks", InitUrl::Kind::kTcp, false},
                                         {"FileWithoutRanks", InitUrl::Kind::kFile, false},
                                         {"MulticastWithoutRanks", InitUrl::Kind::kMulticast, false}};

std::string name_of(const ::testing::TestParamInfo<Meeting>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Methods, InitMeeting, ::testing::ValuesIn(kWithRanks), name_of);
INSTANTIATE_TEST_SUITE_P(WithoutRanks, InitMeeting, ::testing::ValuesIn(kWithoutRanks), name_of);
INSTANTIATE_TEST_SUITE_P(Methods, InitMeetingOfGivenRanks, ::testing::ValuesIn(kWithRanks), name_of);

TEST(InitMethod, ImpossibleArgumentsAreInvalid) {
  for (const char* method :
       {"", "http://x:1", "tcp://x", "tcp://x:0", "tcp://x:99999", "tcp://:1", "tcp://::1:1", "file://",
        "file://x/y", "file:///dir/", "env://x", "env://?rank=-1", "env://?size=1"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(rendezvous(method, 0, 1).status())) << method;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(rendezvous("tcp://localhost:1", 2, 2).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(rendezvous("tcp://localhost:1", 0).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(rendezvous("tcp://localhost:1", 0, 100'000).status()));
}

}  // namespace
}  // namespace gradwire::store
