#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <thread>

#include "gradwire/base/mutex.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/core/call_context.h"
#include "gradwire/rpc/mesh.h"
#include "gradwire/rpc/testing/group.h"

namespace gradwire::rpc {
namespace {

using mesh_internal::RelayFailure;
using mesh_internal::RelayOutcome;
using mesh_internal::RelayReport;
using mesh_internal::RelayTree;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::SizeIs;

std::string own_name() { return Agent::current()->get_worker_info().name; }

// Says what happens when a member takes a value: when it copies the value, after it has passed it on.
class Plan {
 public:
  // The member throws.
  void fail_at(const std::string& worker) {
    MutexLock lock(mutex_);
    failing_.insert(worker);
  }
  // The member waits for `go`.
  void hold_at(const std::string& worker, Future<void> go) {
    MutexLock lock(mutex_);
    held_.emplace(worker, std::move(go));
  }
  // Completes when the member takes the value.
  Future<void> taken_at(const std::string& worker) {
    MutexLock lock(mutex_);
    return taken_[worker].future();
  }
  int times(const std::string& worker) {
    MutexLock lock(mutex_);
    return times_[worker];
  }
  std::string sender(const std::string& worker) {
    MutexLock lock(mutex_);
    return senders_[worker];
  }
  void take(const std::string& worker, const std::string& sender) {
    Promise<void> taken;
    Future<void> go;
    bool fails = false;
    {
      MutexLock lock(mutex_);
      ++times_[worker];
      senders_[worker] = sender;
      taken = taken_[worker];
      fails = failing_.contains(worker);
      if (const auto found = held_.find(worker); found != held_.end()) go = found->second;
    }
    taken.set_value();
    if (go.valid()) go.wait();
    if (fails) throw std::runtime_error("no room for the value");
  }

 private:
  Mutex mutex_;
  std::set<std::string> failing_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Future<void>> held_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Promise<void>> taken_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string> senders_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int> times_ ABSL_GUARDED_BY(mutex_);
};
std::shared_ptr<Plan>& plan() {
  static auto* instance = new std::shared_ptr<Plan>;
  return *instance;
}

// A value that follows the plan when a member copies it.
struct Planned {
  Planned() = default;
  explicit Planned(std::string given) : text(std::move(given)) {}
  Planned(const Planned& other) : text(other.text) {
    plan()->take(own_name(), CallContext::current()->caller().name);
  }
  Planned(Planned&&) = default;
  Planned& operator=(Planned&&) = default;
  std::string text;
};

}  // namespace

template <>
struct Codec<Planned> {
  static std::string type_name() { return "Planned"; }
  static absl::Status encode(const Planned& value, Encoder& encoder, proto::Value& out) {
    return encode_value<std::string>(value.text, encoder, out);
  }
  static absl::StatusOr<Planned> decode(const proto::Value& in, Decoder& decoder) {
    GRADWIRE_ASSIGN_OR_RETURN(std::string text, decode_value<std::string>(in, decoder));
    return Planned(std::move(text));
  }
};

namespace {

GRADWIRE_RPC_BROADCAST(std::string)
GRADWIRE_RPC_BROADCAST(Planned)

std::string text_of(const RRef<std::string>& reference) { return reference.local_value(); }
GRADWIRE_RPC(text_of)
std::string planned_text(const RRef<Planned>& reference) { return reference.local_value().text; }
GRADWIRE_RPC(planned_text)
std::vector<std::string> broadcast_from_handler(const std::string& text) {
  const Mesh mesh = Mesh::all();
  return mesh.call<&text_of>(mesh.broadcast(text)).values();
}
GRADWIRE_RPC(broadcast_from_handler)

// Answers of hostile members, by the name of the worker.
std::map<std::string, std::function<RelayReport<std::string>()>>& lies() {
  static auto* instance = new std::map<std::string, std::function<RelayReport<std::string>()>>;
  return *instance;
}
// A member that may lie about its subtree, and does not pass the value on.
RelayReport<std::string> lie(const std::vector<uint64_t>&, const std::string&) {
  return lies().at(own_name())();
}
GRADWIRE_RPC(lie)

std::vector<std::string> worker_names(int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back(absl::StrCat("w", i));
  return names;
}

class BroadcastTest : public ::testing::Test {
 protected:
  void start(int count) {
    plan() = std::make_shared<Plan>();
    lies().clear();
    group_ = std::make_unique<testing::Group>(worker_names(count));
    guard_ = std::make_unique<AgentGuard>(agent(0));
  }
  ~BroadcastTest() override { guard_ = nullptr; }
  const std::shared_ptr<Agent>& agent(std::size_t rank) { return (*group_)[rank]; }
  testing::Group& group() { return *group_; }
  uint64_t incarnation(std::size_t rank) { return agent(rank)->services().self().incarnation; }
  std::vector<uint64_t> incarnations() {
    std::vector<uint64_t> all;
    for (std::size_t rank = 0; rank < group().size(); ++rank) all.push_back(incarnation(rank));
    return all;
  }

 private:
  std::unique_ptr<testing::Group> group_;
  std::unique_ptr<AgentGuard> guard_;
};

TEST_F(BroadcastTest, EveryMemberOwnsACopy) {
  start(8);
  {
    const Mesh mesh(worker_names(8), {{"host", 2}, {"gpu", 4}});
    const std::string text(100'000, 'x');
    const MeshRRef<std::string> copies = mesh.broadcast(text);
    ASSERT_EQ(copies.size(), 8u);
    for (std::size_t i = 0; i < 8; ++i) {
      EXPECT_EQ(copies[i].owner_name(), absl::StrCat("w", i));
      EXPECT_EQ(copies[i].to_here(), text);
    }
    for (const std::string& copy : mesh.call<&text_of>(copies).values()) EXPECT_EQ(copy, text);
  }
  group().expect_empty();
}

TEST_F(BroadcastTest, ValueTravelsDownATree) {
  start(9);
  const MeshRRef<Planned> copies = Mesh::all().without({"w0"}).broadcast(Planned("text"));
  std::map<std::string, std::string> senders;
  for (int i = 1; i <= 8; ++i) senders[absl::StrCat("w", i)] = plan()->sender(absl::StrCat("w", i));
  EXPECT_THAT(senders, ElementsAre(Pair("w1", "w0"), Pair("w2", "w1"), Pair("w3", "w1"), Pair("w4", "w3"),
                                   Pair("w5", "w0"), Pair("w6", "w5"), Pair("w7", "w5"), Pair("w8", "w7")));
}

TEST_F(BroadcastTest, OneMemberAndTheCallerItself) {
  start(2);
  EXPECT_EQ(Mesh({"w1"}).broadcast<std::string>("a")[0].to_here(), "a");
  EXPECT_EQ(Mesh({"w0"}).broadcast<std::string>("b")[0].local_value(), "b");
  group().expect_empty();
}

TEST_F(BroadcastTest, HandlersBroadcastToo) {
  start(4);
  EXPECT_THAT(agent(0)->rpc_sync<&broadcast_from_handler>("w3", "text"),
              ElementsAre("text", "text", "text", "text"));
  group().expect_empty();
}

// w0 and w4 are the heads of the two halves. Each passes the value on before it takes it.
TEST_F(BroadcastTest, MembersBelowAFailedOneGetTheValueFromTheWorkerAbove) {
  start(8);
  plan()->fail_at("w4");
  const Mesh mesh = Mesh::all();
  const absl::Status status = status_of([&] { (void)mesh.broadcast(Planned("text")); });
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("the broadcast failed: 1 of 8 members failed: \"w4\": "));
  EXPECT_THAT(std::string(status.message()), HasSubstr("no room for the value"));
  // Those below w4 got it from w4, and, because w4 could not report that, from the caller again.
  EXPECT_EQ(plan()->times("w4"), 1);
  EXPECT_EQ(plan()->times("w5"), 2);
  EXPECT_EQ(plan()->sender("w5"), "w0");
  EXPECT_EQ(plan()->times("w1"), 1);
  group().expect_empty();
  const Mesh rest = mesh.without({"w4"});
  const MeshRRef<Planned> copies = rest.broadcast(Planned("again"));
  for (const std::string& text : rest.call<&planned_text>(copies).values()) EXPECT_EQ(text, "again");
}

TEST_F(BroadcastTest, DeathOfAnInnerMemberDuringTheBroadcastIsReportedByName) {
  start(8);
  Promise<void> go;
  plan()->hold_at("w4", go.future());
  const auto mesh = std::make_shared<Mesh>(Mesh::all());
  Promise<std::string> error;
  std::thread caller([agent = agent(0), mesh, error] {
    AgentGuard guard(agent);
    error.set_value(std::string(status_of([&] { (void)mesh->broadcast(Planned("text")); }).message()));
  });
  EXPECT_TRUE(plan()->taken_at("w4").wait_for(absl::Seconds(30)));
  std::thread killer([this] { group().kill(4); });
  EXPECT_TRUE(error.future().wait_for(absl::Seconds(30)));
  EXPECT_THAT(error.future().wait(), HasSubstr("1 of 8 members failed: \"w4\": "));
  // A shutdown waits for handlers that run.
  go.set_value();
  caller.join();
  killer.join();
  for (const char* below : {"w5", "w6", "w7"}) EXPECT_EQ(plan()->times(below), 2) << below;
}

TEST_F(BroadcastTest, DeadMemberIsReportedAndTheTreeGoesOnWithoutIt) {
  start(4);
  const Mesh mesh = Mesh::all();
  group().kill(2);
  const absl::Status status = status_of([&] { (void)mesh.broadcast(Planned("text")); });
  EXPECT_THAT(std::string(status.message()), HasSubstr("1 of 4 members failed: \"w2\": "));
  for (const char* name : {"w0", "w1", "w3"}) EXPECT_GE(plan()->times(name), 1) << name;
}

// w1 is below w0, which stops waiting 200 ms before the caller does.
TEST_F(BroadcastTest, LateLeafIsNamedAlone) {
  start(8);
  Promise<void> go;
  plan()->hold_at("w1", go.future());
  const Mesh mesh = Mesh::all().with_timeout(absl::Seconds(4));
  const absl::Status status = status_of([&] { (void)mesh.broadcast(Planned("text")); });
  EXPECT_TRUE(absl::IsDeadlineExceeded(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("the broadcast failed: 1 of 8 members did not answer in 4s: \"w1\""));
  go.set_value();
  group().expect_empty();
}

TEST_F(BroadcastTest, HostileListsAreRefused) {
  start(3);
  const auto relay = [&](const std::vector<uint64_t>& members) {
    return agent(0)->rpc_async<&mesh_internal::relay<std::string>>("w1", members, "text").result().status();
  };
  EXPECT_TRUE(relay(incarnations()).ok());
  absl::Status status = relay({incarnation(0), incarnation(2)});
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("does not name its receiver"));
  status = relay({incarnation(1), incarnation(2), incarnation(2)});
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("twice"));
  EXPECT_TRUE(absl::IsInvalidArgument(relay({})));
  std::vector<uint64_t> many{incarnation(1)};
  for (uint64_t i = 0; i < mesh_internal::kMaxBroadcastMembers; ++i) many.push_back(i);
  status = relay(many);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("at most"));
  // Unknown members are failures, and those below them get the value: place 2 is the second child, 3 below
  // it.
  const auto report = agent(0)
                          ->rpc_async<&mesh_internal::relay<std::string>>(
                              "w1", std::vector<uint64_t>{incarnation(1), 77, 78, incarnation(2)}, "text")
                          .wait();
  std::vector<uint64_t> delivered;
  for (const auto& [member, reference] : report.first) delivered.push_back(member);
  EXPECT_THAT(delivered, ::testing::Contains(incarnation(1)));
}

// Runs the caller's part with children that serve lie().
RelayOutcome outcome_of_lies(const std::shared_ptr<Agent>& agent, const std::vector<uint64_t>& members) {
  const std::string text = "text";
  auto call = std::make_unique<GroupCall>(agent->caller(), "lie", members.size());
  call_internal::set_function<&lie>(*call);
  call->add_argument<std::vector<uint64_t>>(members);
  call->add_argument<std::string>(text);
  const auto tree = std::make_shared<RelayTree>(agent, members, absl::InfiniteFuture(), std::move(call),
                                                &mesh_internal::decode_report<std::string>);
  return tree->start(tree->plan().children_of_root()).wait();
}

TEST_F(BroadcastTest, ReportsAreBelievedForTheOwnSubtreeOnly) {
  start(5);
  // w1 and w3 are the heads of {w1, w2} and {w3, w4}.
  const std::vector<uint64_t> members = {incarnation(1), incarnation(2), incarnation(3), incarnation(4)};
  const auto own = [](uint64_t member) { return std::make_pair(member, RRef<std::string>("mine")); };
  // w1 reports a reference of its own as that of w2, and says that w3 has failed.
  lies()["w1"] = [own, members] {
    return RelayReport<std::string>(
        {own(members[0]), own(members[1])},
        {RelayFailure(members[2], 14, "not its business"), RelayFailure(12345, 14, "unknown")});
  };
  // w3 reports itself twice, and w4 with a code that does not exist.
  lies()["w3"] = [own, members] {
    return RelayReport<std::string>({own(members[2]), own(members[2])},
                                    {RelayFailure(members[3], 4711, "a strange code")});
  };
  {
    const RelayOutcome outcome = outcome_of_lies(agent(0), members);
    std::vector<uint64_t> delivered;
    for (const auto& [member, handle] : outcome.delivered) {
      delivered.push_back(member);
      EXPECT_EQ(handle->owner().incarnation, member);
    }
    EXPECT_THAT(delivered, ElementsAre(members[0], members[2]));
    ASSERT_THAT(outcome.failed, SizeIs(2));
    EXPECT_EQ(std::get<0>(outcome.failed[0]), members[1]);
    EXPECT_THAT(std::get<2>(outcome.failed[0]), HasSubstr("was not reported"));
    EXPECT_EQ(outcome.failed[1], RelayFailure(members[3], 13, "a strange code"));
  }
  group().expect_empty();
}

TEST_F(BroadcastTest, UnregisteredTypeIsAnError) {
  start(2);
  const absl::Status status = status_of([] { (void)Mesh::all().broadcast<int64_t>(5); });
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("not registered"));
}

}  // namespace
}  // namespace gradwire::rpc
