#include "gradwire/rpc/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>

#include "absl/strings/match.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/core/agent_statistics.h"
#include "gradwire/rpc/core/call_context.h"
#include "gradwire/rpc/testing/faults.h"
#include "gradwire/rpc/testing/group.h"

namespace gradwire::rpc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string my_name() { return Agent::current()->get_worker_info().name; }

// Counts its encodings.
struct Counted {
  int64_t value = 0;
};
std::atomic<int> encodings{0};

}  // namespace

template <>
struct Codec<Counted> {
  static std::string type_name() { return "Counted"; }
  static absl::Status encode(const Counted& counted, Encoder&, proto::Value& out) {
    ++encodings;
    out.set_integer(counted.value);
    return absl::OkStatus();
  }
  static absl::StatusOr<Counted> decode(const proto::Value& in, Decoder&) { return Counted{in.integer()}; }
};

namespace {

// The promises of one worker: what its handlers wait for, and what they report.
struct Hold {
  Promise<std::string> answer;
  Promise<void> started;
  Promise<void> cancelled;
};
class Holds {
 public:
  Hold of(const std::string& worker) {
    MutexLock lock(mutex_);
    return holds_[worker];
  }
  void clear() {
    MutexLock lock(mutex_);
    holds_.clear();
  }

 private:
  Mutex mutex_;
  std::map<std::string, Hold> holds_ ABSL_GUARDED_BY(mutex_);
};
Holds& holds() {
  static auto* instance = new Holds;
  return *instance;
}

std::string where() { return my_name(); }
GRADWIRE_RPC(where)
int64_t add(int64_t a, int64_t b) { return a + b; }
GRADWIRE_RPC(add)
void nothing() {}
GRADWIRE_RPC(nothing)
int64_t value_of(const Counted& counted) { return counted.value; }
GRADWIRE_RPC(value_of)
std::string where_unless(const std::string& failing) {
  if (my_name() == failing) throw std::runtime_error("on purpose");
  return my_name();
}
GRADWIRE_RPC(where_unless)
std::string fail() { throw Error(absl::OutOfRangeError("never")); }
GRADWIRE_RPC(fail)
// Answers at once on all workers but those that the test holds.
Future<std::string> hold_at(const std::vector<std::string>& held) {
  const std::string name = my_name();
  if (std::find(held.begin(), held.end(), name) == held.end())
    return Future<std::string>(absl::StatusOr<std::string>(name));
  const Hold hold = holds().of(name);
  CallContext::current()->cancellation().on_cancelled(
      [cancelled = hold.cancelled] { cancelled.set_value(); });
  hold.started.set_value();
  return hold.answer.future();
}
GRADWIRE_RPC(hold_at)
int64_t read(const RRef<int64_t>& reference) { return reference.to_here(); }
GRADWIRE_RPC(read)
int64_t read_own(const RRef<int64_t>& reference) {
  if (!reference.is_owner()) throw std::runtime_error("the reference of another member");
  return reference.local_value();
}
GRADWIRE_RPC(read_own)
// Calls all workers from a handler.
std::vector<std::string> nested() { return Mesh::all().call<&where>().values(); }
GRADWIRE_RPC(nested)

class Runs {
 public:
  void add(const std::string& worker) {
    MutexLock lock(mutex_);
    ++counts_[worker];
  }
  std::map<std::string, int> take() {
    MutexLock lock(mutex_);
    return std::exchange(counts_, {});
  }

 private:
  Mutex mutex_;
  std::map<std::string, int> counts_ ABSL_GUARDED_BY(mutex_);
};
Runs& runs() {
  static auto* instance = new Runs;
  return *instance;
}
std::string once(const std::string& text) {
  runs().add(my_name());
  return text;
}
GRADWIRE_RPC_IDEMPOTENT(once)

struct Actor {
  explicit Actor(const std::string& refusing) {
    if (my_name() == refusing) throw std::runtime_error("no object here");
  }
  std::string add(int64_t amount) {
    sum += amount;
    return absl::StrCat(my_name(), "=", sum);
  }
  std::string fail_on(const std::string& name) {
    if (my_name() == name) throw std::runtime_error("on purpose");
    return my_name();
  }
  int64_t sum = 0;
};
GRADWIRE_RPC_SERIAL_CLASS(Actor, std::string)
GRADWIRE_RPC_METHOD(Actor, add)
GRADWIRE_RPC_METHOD(Actor, fail_on)

std::vector<std::string> names(int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back(absl::StrCat("w", i));
  return names;
}

// The status of the Error that `function` throws.
absl::Status thrown(const std::function<void()>& function) { return status_of(function); }

class MeshTest : public ::testing::Test {
 protected:
  void start(int count, RpcBackendOptions options = {}) {
    guard_ = nullptr;
    group_ = nullptr;
    holds().clear();
    runs().take();
    group_ = std::make_unique<testing::Group>(names(count), std::move(options));
    guard_ = std::make_unique<AgentGuard>(agent());
  }
  ~MeshTest() override { guard_ = nullptr; }
  const std::shared_ptr<Agent>& agent() { return (*group_)[0]; }
  testing::Group& group() { return *group_; }

 private:
  std::unique_ptr<testing::Group> group_;
  std::unique_ptr<AgentGuard> guard_;
};

TEST_F(MeshTest, AnswersAreInTheOrderOfTheMembers) {
  start(6);
  // Not the order of the ranks, and with the caller itself.
  const Mesh mesh({"w5", "w0", "w3", "w1", "w4", "w2"}, {{"host", 2}, {"gpu", 3}});
  const MeshResult<std::string> result = mesh.call<&where>();
  EXPECT_TRUE(result.ok());
  EXPECT_THAT(result.values(), ElementsAre("w5", "w0", "w3", "w1", "w4", "w2"));
  EXPECT_EQ(*result[2], "w3");
  EXPECT_EQ(*result.at("w4"), "w4");
  std::vector<std::string> iterated;
  for (const absl::StatusOr<std::string>& answer : result) iterated.push_back(*answer);
  EXPECT_EQ(iterated, mesh.names());
  EXPECT_THAT(mesh.call<&add>(40, 2).values(), ElementsAre(42, 42, 42, 42, 42, 42));
  mesh.call<&nothing>().values();
  group().expect_empty();
}

TEST_F(MeshTest, SlicesCallTheirMembersOnly) {
  start(6);
  const Mesh mesh(names(6), {{"host", 2}, {"gpu", 3}});
  EXPECT_EQ(mesh.size(), 6u);
  EXPECT_EQ(mesh.at({1, 2}), "w5");
  EXPECT_THAT(mesh.slice("host", 1).call<&where>().values(), ElementsAre("w3", "w4", "w5"));
  EXPECT_THAT(mesh.slice("gpu", 0, 2).call<&where>().values(), ElementsAre("w0", "w1", "w3", "w4"));
  const Mesh column = mesh.slice("gpu", 1);
  EXPECT_THAT(column.shape(), ElementsAre(MeshDimension{"host", 2}));
  EXPECT_THAT(column.slice("host", 1).call<&where>().values(), ElementsAre("w4"));
  EXPECT_THAT(column.slice("host", 1).shape(), IsEmpty());
  EXPECT_THAT(mesh.flatten("rank").shape(), ElementsAre(MeshDimension{"rank", 6}));
  EXPECT_THAT(mesh.without({"w1", "w4"}).names(), ElementsAre("w0", "w2", "w3", "w5"));
}

TEST_F(MeshTest, MembersComeFromNamesRanksOrTheGroup) {
  start(3);
  EXPECT_THAT(Mesh::of_ranks({2, 0}).names(), ElementsAre("w2", "w0"));
  EXPECT_THAT(Mesh::of_ranks({0, 1}, {{"host", 2}, {"gpu", 1}}).at({1, 0}), "w1");
  EXPECT_THAT(Mesh::all().names(), ElementsAre("w0", "w1", "w2"));
  EXPECT_THAT(Mesh::all(group()[2]).call<&where>().values(), ElementsAre("w0", "w1", "w2"));
  EXPECT_EQ(group()[2]->statistics().calls_made, 3u);
}

TEST_F(MeshTest, ErrorsSayWhatExists) {
  start(2);
  const Mesh mesh({"w0", "w1"}, {{"gpu", 2}});
  absl::Status status = thrown([] { Mesh({"w0", "w9"}); });
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(status.message(),
              HasSubstr("\"w9\" not found in the group; its workers are \"w0\" (0), \"w1\""));
  EXPECT_TRUE(absl::IsNotFound(thrown([] { Mesh::of_ranks({0, 7}); })));
  status = thrown([] { Mesh({"w1", "w1"}); });
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(status.message(), HasSubstr("\"w1\" occurs twice"));
  EXPECT_THAT(thrown([] { Mesh(std::vector<std::string>()); }).message(), HasSubstr("at least one member"));
  EXPECT_THAT(thrown([&] { mesh.slice("host", 0); }).message(), HasSubstr("its dimensions are \"gpu\" (2)"));
  EXPECT_THAT(thrown([&] { mesh.at({2}); }).message(), HasSubstr("dimension \"gpu\" has the indices 0 to 1"));
  EXPECT_THAT(thrown([&] { mesh.without({"w0", "w1"}); }).message(), HasSubstr("at least one member"));
  EXPECT_THAT(thrown([&] { mesh.without({"w2"}); }).message(), HasSubstr("its members are w0, w1"));
  EXPECT_THAT(thrown([&] { mesh.call<&nothing>().at("w2"); }).message(), HasSubstr("its members are w0, w1"));
}

TEST_F(MeshTest, OneMemberIsEnough) {
  start(2);
  EXPECT_THAT(Mesh({"w1"}).call<&where>().values(), ElementsAre("w1"));
  EXPECT_THAT(Mesh({"w0"}).call<&where>().values(), ElementsAre("w0"));
  EXPECT_EQ(Mesh({"w1"}).any<&where>(), "w1");
  EXPECT_THAT(Mesh({"w1"}).call_async<&where>().wait().values(), ElementsAre("w1"));
}

TEST_F(MeshTest, ArgumentsAreEncodedOnce) {
  start(4);
  const Mesh mesh = Mesh::all();
  encodings = 0;
  EXPECT_THAT(mesh.call<&value_of>(Counted{7}).values(), ElementsAre(7, 7, 7, 7));
  EXPECT_EQ(encodings, 1);
  EXPECT_THAT(mesh.call_async<&value_of>(Counted{8}).wait().values(), ElementsAre(8, 8, 8, 8));
  EXPECT_EQ(encodings, 2);
}

TEST_F(MeshTest, ErrorOfOneMemberIsKeptBesideTheAnswersOfTheOthers) {
  start(4);
  const MeshResult<std::string> result = Mesh::all().call<&where_unless>("w2");
  EXPECT_FALSE(result.ok());
  EXPECT_THAT(result.failed(), ElementsAre("w2"));
  EXPECT_EQ(*result[3], "w3");
  EXPECT_TRUE(absl::IsUnknown(result.at("w2").status()));
  try {
    result.values();
    FAIL() << "values() did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.worker(), "w2");
    EXPECT_TRUE(absl::IsUnknown(error.status()));
    EXPECT_THAT(error.what(), HasSubstr("1 of 4 members failed: \"w2\": "));
    EXPECT_THAT(error.what(), HasSubstr("on purpose"));
  }
  group().expect_empty();
}

TEST_F(MeshTest, MembersThatDoNotAnswerInTimeAreNamed) {
  start(4);
  const Mesh mesh = Mesh::all().with_timeout(absl::Milliseconds(300));
  const MeshResult<std::string> result = mesh.call<&hold_at>(std::vector<std::string>{"w1", "w3"});
  EXPECT_THAT(result.failed(), ElementsAre("w1", "w3"));
  EXPECT_EQ(*result.at("w2"), "w2");
  const absl::Status status = thrown([&] { result.values(); });
  EXPECT_TRUE(absl::IsDeadlineExceeded(status));
  EXPECT_THAT(status.message(), HasSubstr("2 of 4 members did not answer in 300ms: \"w1\", \"w3\""));
  // The members learn that nobody waits any more.
  for (const char* name : {"w1", "w3"}) {
    EXPECT_TRUE(holds().of(name).cancelled.future().wait_for(absl::Seconds(30)));
    holds().of(name).answer.set_value("late");
  }
  group().expect_empty();
}

TEST_F(MeshTest, DeathOfAMemberEndsItsCallOnly) {
  start(4);
  Future<MeshResult<std::string>> future =
      Mesh::all().call_async<&hold_at>(std::vector<std::string>{"w1", "w2"});
  for (const char* name : {"w1", "w2"})
    ASSERT_TRUE(holds().of(name).started.future().wait_for(absl::Seconds(30)));
  group().kill(2);
  holds().of("w1").answer.set_value("w1 at last");
  const MeshResult<std::string> result = future.wait();
  EXPECT_THAT(result.failed(), ElementsAre("w2"));
  EXPECT_EQ(*result.at("w1"), "w1 at last");
  EXPECT_EQ(worker_of(result.at("w2").status()), "w2");
  EXPECT_THAT(result.status().message(), HasSubstr("1 of 4 members failed: \"w2\": "));
  holds().of("w2").answer.set_value("nobody waits");
  // The same mesh reports the dead member at once, and goes on without it.
  const Mesh same({"w0", "w1", "w3"});
  EXPECT_TRUE(same.call<&where>().ok());
  EXPECT_THAT(Mesh::all().names(), ElementsAre("w0", "w1", "w3"));
}

TEST_F(MeshTest, CancellingTheFutureCancelsAllMembers) {
  start(3);
  Future<MeshResult<std::string>> future = Mesh::all().call_async<&hold_at>(names(3));
  for (const std::string& name : names(3))
    ASSERT_TRUE(holds().of(name).started.future().wait_for(absl::Seconds(30)));
  future.cancel();
  EXPECT_TRUE(absl::IsCancelled(future.result().status()));
  for (const std::string& name : names(3)) {
    EXPECT_TRUE(holds().of(name).cancelled.future().wait_for(absl::Seconds(30))) << name;
    holds().of(name).answer.set_value("late");
  }
  group().expect_empty();
}

TEST_F(MeshTest, AnyReturnsTheFirstAnswerAndCancelsTheOthers) {
  start(4);
  const Mesh mesh({"w1", "w2", "w3"});
  Future<std::string> first = mesh.any_async<&hold_at>(std::vector<std::string>{"w1", "w2", "w3"});
  for (const char* name : {"w1", "w2", "w3"})
    ASSERT_TRUE(holds().of(name).started.future().wait_for(absl::Seconds(30)));
  EXPECT_FALSE(first.done());
  // An error does not decide.
  holds().of("w1").answer.set_error(absl::OutOfRangeError("not here"));
  holds().of("w3").answer.set_value("three");
  EXPECT_EQ(first.wait(), "three");
  EXPECT_TRUE(holds().of("w2").cancelled.future().wait_for(absl::Seconds(30)));
  holds().of("w2").answer.set_value("late");
  group().expect_empty();
}

TEST_F(MeshTest, AnyWithoutAnAnswerNamesAllMembers) {
  start(3);
  const absl::Status status = thrown([] { Mesh::all().any<&fail>(); });
  EXPECT_TRUE(absl::IsOutOfRange(status));
  for (const std::string& name : names(3)) EXPECT_THAT(status.message(), HasSubstr("\"" + name + "\": "));
  EXPECT_THAT(status.message(), HasSubstr("3 of 3 members failed"));
  group().expect_empty();
}

TEST_F(MeshTest, CancellingAnyCancelsAllMembers) {
  start(2);
  Future<std::string> first = Mesh::all().any_async<&hold_at>(names(2));
  for (const std::string& name : names(2))
    ASSERT_TRUE(holds().of(name).started.future().wait_for(absl::Seconds(30)));
  first.cancel();
  EXPECT_TRUE(absl::IsCancelled(first.result().status()));
  for (const std::string& name : names(2)) {
    EXPECT_TRUE(holds().of(name).cancelled.future().wait_for(absl::Seconds(30)));
    holds().of(name).answer.set_value("late");
  }
  group().expect_empty();
}

TEST_F(MeshTest, ReferenceAsArgumentIsForkedForEachMember) {
  start(4);
  {
    // One that the caller owns, and one that a member owns.
    const RRef<int64_t> own(5);
    EXPECT_THAT(Mesh::all().call<&read>(own).values(), ElementsAre(5, 5, 5, 5));
    const RRef<int64_t> elsewhere = agent()->remote<&add>("w2", 20, 22);
    EXPECT_THAT(Mesh::all().call<&read>(elsewhere).values(), ElementsAre(42, 42, 42, 42));
    EXPECT_THAT(Mesh::all().call_async<&read>(elsewhere).wait().values(), ElementsAre(42, 42, 42, 42));
  }
  group().expect_empty();
}

TEST_F(MeshTest, ReferencesOfAFailedCallAreTakenBack) {
  start(3);
  {
    const RRef<int64_t> own(5);
    const Mesh mesh = Mesh::all();
    group().kill(2);
    const MeshResult<int64_t> result = mesh.call<&read>(own);
    EXPECT_THAT(result.failed(), ElementsAre("w2"));
    EXPECT_EQ(*result[1], 5);
  }
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (agent()->tables().owned_rrefs > 0 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(agent()->tables().owned_rrefs, 0u);
}

TEST_F(MeshTest, MeshOfReferencesGivesEachMemberItsOwn) {
  start(3);
  {
    const Mesh mesh({"w1", "w2", "w0"});
    const MeshRRef<int64_t> sums = mesh.remote<&add>(1, 2);
    EXPECT_TRUE(sums.created().ok());
    EXPECT_EQ(sums.at("w2").owner_name(), "w2");
    EXPECT_THAT(mesh.call<&read_own>(sums).values(), ElementsAre(3, 3, 3));
    EXPECT_THAT(mesh.slice("member", 1, 3).call<&read_own>(sums.slice("member", 1, 3)).values(),
                ElementsAre(3, 3));
    const MeshResult<int64_t> wrong = mesh.call<&read_own>(sums.slice("member", 0, 2));
    EXPECT_THAT(wrong.status().message(), HasSubstr("expected one for each of the 3 members"));
  }
  group().expect_empty();
}

TEST_F(MeshTest, ActorsKeepTheirState) {
  start(3);
  {
    const Mesh mesh(names(3), {{"host", 3}});
    const MeshRRef<Actor> actors = mesh.remote<Actor>("nobody");
    EXPECT_THAT(actors.call<&Actor::add>(2).values(), ElementsAre("w0=2", "w1=2", "w2=2"));
    EXPECT_THAT(actors.slice("host", 1, 3).call<&Actor::add>(3).values(), ElementsAre("w1=5", "w2=5"));
    EXPECT_THAT(actors.call_async<&Actor::add>(1).wait().values(), ElementsAre("w0=3", "w1=6", "w2=6"));
    EXPECT_EQ(actors[1].rpc_sync<&Actor::add>(0), "w1=6");
    EXPECT_THAT(actors.call<&Actor::fail_on>("w1").failed(), ElementsAre("w1"));
  }
  group().expect_empty();
}

TEST_F(MeshTest, ActorThatCannotBeMadeFailsByName) {
  start(3);
  {
    const MeshRRef<Actor> actors = Mesh::all().remote<Actor>("w1");
    const MeshResult<void> created = actors.created();
    EXPECT_THAT(created.failed(), ElementsAre("w1"));
    EXPECT_THAT(created.status().message(), HasSubstr("no object here"));
    const MeshResult<std::string> result = actors.call<&Actor::add>(1);
    EXPECT_THAT(result.failed(), ElementsAre("w1"));
    EXPECT_THAT(result.at("w1").status().message(), HasSubstr("no object here"));
    EXPECT_EQ(*result.at("w2"), "w2=1");
  }
  group().expect_empty();
}

TEST_F(MeshTest, HandlersCallMeshesToo) {
  start(3);
  for (const std::vector<std::string>& answer : Mesh::all().call<&nested>().values())
    EXPECT_THAT(answer, ElementsAre("w0", "w1", "w2"));
  group().expect_empty();
}

TEST_F(MeshTest, IdempotentCallsOutliveTheirConnections) {
  for (const char* transport : {"tcp", "shm"}) {
    RpcBackendOptions options;
    options.transports = {transport};
    // Cuts the connections of the first requests.
    const auto left = std::make_shared<std::atomic<int>>(3);
    options.hooks = testing::outgoing_faults([left](const proto::Envelope& envelope) {
      const bool cut = absl::StrContains(envelope.request().function(), "once") && left->fetch_sub(1) > 0;
      return cut ? transport::Fault::Kind::kCut : transport::Fault::Kind::kDeliver;
    });
    start(4, options);
    const std::string large(100'000, 'x');
    for (const std::string& answer : Mesh::all().call<&once>(large).values()) EXPECT_EQ(answer, large);
    EXPECT_EQ(agent()->statistics().calls_repeated, 3u);
    for (const auto& [name, count] : runs().take()) EXPECT_EQ(count, 1) << name;
    group().expect_empty();
  }
}

TEST_F(MeshTest, CallsAfterShutdownFail) {
  start(2);
  const Mesh mesh = Mesh::all();
  group().shut_down();
  const MeshResult<std::string> result = mesh.call<&where>();
  EXPECT_THAT(result.failed(), ElementsAre("w0", "w1"));
  EXPECT_TRUE(absl::IsFailedPrecondition(result.status()));
}

}  // namespace
}  // namespace gradwire::rpc
