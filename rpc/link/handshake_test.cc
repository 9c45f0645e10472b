#include "gradwire/rpc/link/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "gradwire/rpc/link/goodbye.h"

namespace gradwire::rpc {
namespace {

using Action = Handshake::Action;
using Standing = GroupView::Standing;
using ::testing::HasSubstr;

class Group : public GroupView {
 public:
  Standing standing(uint64_t incarnation, std::string* name) const override {
    const auto found = workers.find(incarnation);
    if (found == workers.end()) return Standing::kStranger;
    if (name != nullptr) *name = found->second.first;
    return found->second.second;
  }
  bool knows_owners(const ReferenceList& references) const override {
    for (const proto::Reference& reference : references) {
      if (!workers.contains(reference.owner())) return false;
    }
    return true;
  }

  std::map<uint64_t, std::pair<std::string, Standing>> workers = {
      {11, {"self", Standing::kMember}}, {22, {"other", Standing::kMember}}, {33, {"dead", Standing::kDead}},
      {44, {"left", Standing::kLeft}},   {55, {"early", Standing::kGone}},
  };
};

class HandshakeTest : public ::testing::Test {
 protected:
  static proto::Envelope hello(const std::string& name, uint64_t incarnation, uint64_t to = 11) {
    proto::Envelope envelope;
    proto::Hello& hello = *envelope.mutable_hello();
    hello.set_protocol_version(kProtocolVersion);
    hello.set_name(name);
    hello.set_incarnation(incarnation);
    hello.set_to_incarnation(to);
    hello.set_connection(1);
    return envelope;
  }
  // A request with a reference to a value of `owner`.
  static proto::Envelope request(uint64_t owner) {
    proto::Envelope envelope;
    envelope.mutable_request()->mutable_arguments()->add_references()->set_owner(owner);
    return envelope;
  }
  static proto::Envelope goodbye_of(const absl::Status& reason) {
    proto::Envelope envelope;
    EXPECT_TRUE(envelope.ParseFromString(goodbye(reason)));
    return envelope;
  }
  void expect_refused(const Handshake& handshake, const proto::Envelope& envelope, absl::StatusCode code,
                      const std::string& text) {
    const Handshake::Step step = handshake.receive(envelope, group_);
    EXPECT_EQ(step.action, Action::kRefuse);
    EXPECT_EQ(step.reason.code(), code) << step.reason;
    EXPECT_THAT(step.reason.message(), HasSubstr(text));
  }

  const Worker self_{"self", 0, 11};
  const Worker other_{"other", 1, 22};
  Group group_;
  Handshake came_in_{self_, std::nullopt};
  Handshake made_{self_, other_};
};

TEST_F(HandshakeTest, MemberThatComesInIsAdmittedOnceAndAnswered) {
  const proto::Envelope first = hello("other", 22);
  EXPECT_EQ(came_in_.receive(first, group_).action, Action::kAdmit);
  came_in_.admitted(first.hello());
  EXPECT_TRUE(came_in_.introduced());
  EXPECT_EQ(came_in_.receive(request(11), group_).action, Action::kDeliver);
  const proto::Hello answer = came_in_.hello(7);
  EXPECT_EQ(answer.name(), "self");
  EXPECT_EQ(answer.incarnation(), 11u);
  EXPECT_EQ(answer.to_incarnation(), 0u);
  EXPECT_EQ(answer.connection(), 7u);
  expect_refused(came_in_, first, absl::StatusCode::kInvalidArgument, "a second Hello");
}

TEST_F(HandshakeTest, AnswerOnAConnectionMadeHereMustComeFromItsPeer) {
  EXPECT_EQ(made_.hello(1).to_incarnation(), 22u);
  EXPECT_EQ(made_.receive(hello("other", 22, 0), group_).action, Action::kAdmit);
  group_.workers[66] = {"third", Standing::kMember};
  expect_refused(made_, hello("third", 66, 0), absl::StatusCode::kInvalidArgument,
                 "expected an answer from worker \"other\"");
}

TEST_F(HandshakeTest, MessageBeforeTheHelloIsRefused) {
  expect_refused(came_in_, request(22), absl::StatusCode::kInvalidArgument, "before its Hello");
  // It is not held either: a peer that has not introduced itself takes no memory.
  expect_refused(came_in_, request(99), absl::StatusCode::kInvalidArgument, "before its Hello");
}

TEST_F(HandshakeTest, EachReasonToRefuseAHelloHasItsCode) {
  expect_refused(came_in_, hello("", 22), absl::StatusCode::kInvalidArgument, "a Hello");
  proto::Envelope version = hello("other", 22);
  version.mutable_hello()->set_protocol_version(kProtocolVersion + 1);
  expect_refused(came_in_, version, absl::StatusCode::kFailedPrecondition, "protocol version");
  expect_refused(came_in_, hello("impostor", 22), absl::StatusCode::kNotFound, "does not match a member");
  expect_refused(came_in_, hello("early", 55), absl::StatusCode::kAborted, "before \"self\" joined");
  expect_refused(came_in_, hello("dead", 33), absl::StatusCode::kAborted, "was declared dead by \"self\"");
  expect_refused(came_in_, hello("left", 44), absl::StatusCode::kAborted, "has left the group");
  expect_refused(came_in_, hello("other", 22, 12), absl::StatusCode::kAborted, "a new incarnation");
  proto::Envelope unnumbered = hello("other", 22);
  unnumbered.mutable_hello()->set_connection(0);
  expect_refused(came_in_, unnumbered, absl::StatusCode::kInvalidArgument, "has no connection number");
}

TEST_F(HandshakeTest, NameThatDiffersFromTheProvenOneIsRefused) {
  using Proof = security::PeerIdentity::Proof;
  came_in_.identify({.proof = Proof::kToken, .name = "third"});
  expect_refused(came_in_, hello("other", 22), absl::StatusCode::kPermissionDenied,
                 "says in its Hello that it is \"other\", but its credentials are those of \"third\"");
  came_in_.identify({.proof = Proof::kToken, .name = "other"});
  EXPECT_EQ(came_in_.receive(hello("other", 22), group_).action, Action::kAdmit);
  made_.identify({.proof = Proof::kCertificate, .job = "job", .name = "third"});
  expect_refused(made_, hello("other", 22, 0), absl::StatusCode::kPermissionDenied, "those of \"third\"");
}

TEST_F(HandshakeTest, LivenessQueryIsAnsweredBeforeTheGroupIsKnown) {
  group_.workers.clear();
  expect_refused(came_in_, hello("who", 0), absl::StatusCode::kNotFound,
                 "liveness query: worker \"self\" is alive");
  expect_refused(came_in_, hello("who", 0, 12), absl::StatusCode::kAborted,
                 "liveness query for another incarnation");
}

TEST_F(HandshakeTest, ObserverIsAdmittedAndMayOnlyAsk) {
  proto::Envelope observer = hello("inspect", 0);
  observer.mutable_hello()->set_connection(0);
  observer.mutable_hello()->set_observer(true);
  EXPECT_EQ(came_in_.receive(observer, group_).action, Action::kObserve);
  came_in_.observe();
  EXPECT_TRUE(came_in_.observed());
  EXPECT_FALSE(came_in_.introduced());
  proto::Envelope ask;
  ask.mutable_request()->mutable_service()->set_number(kInspect);
  EXPECT_EQ(came_in_.receive(ask, group_).action, Action::kAsk);
  EXPECT_EQ(came_in_.receive(goodbye_of(absl::OkStatus()), group_).action, Action::kPart);
  proto::Envelope ping;
  ping.mutable_request()->mutable_service()->set_number(4);
  proto::Envelope call;
  call.mutable_request()->set_function("f");
  proto::Envelope loaded = ask;
  loaded.mutable_request()->mutable_arguments()->add_values();
  proto::Envelope heartbeat;
  heartbeat.mutable_heartbeat();
  for (const proto::Envelope& other :
       {ping, call, loaded, heartbeat, observer, hello("other", 22), request(11)}) {
    expect_refused(came_in_, other, absl::StatusCode::kInvalidArgument, "may only ask for the state");
  }
}

TEST_F(HandshakeTest, ObserverMustSayWhomItWantsAndThatItIsNoMember) {
  proto::Envelope observer = hello("inspect", 0);
  observer.mutable_hello()->set_connection(0);
  observer.mutable_hello()->set_observer(true);
  proto::Envelope member = observer, numbered = observer, other = observer, unnamed = observer;
  member.mutable_hello()->set_incarnation(22);
  expect_refused(came_in_, member, absl::StatusCode::kInvalidArgument, "malformed Hello");
  numbered.mutable_hello()->set_connection(1);
  expect_refused(came_in_, numbered, absl::StatusCode::kInvalidArgument, "malformed Hello");
  other.mutable_hello()->set_to_incarnation(12);
  expect_refused(came_in_, other, absl::StatusCode::kAborted, "another incarnation");
  unnamed.mutable_hello()->set_name("a name with blanks");
  expect_refused(came_in_, unnamed, absl::StatusCode::kInvalidArgument, "worker name");
  expect_refused(made_, observer, absl::StatusCode::kInvalidArgument, "malformed Hello");
  group_.workers.clear();
  expect_refused(came_in_, observer, absl::StatusCode::kUnavailable, "has not joined its group yet");
  came_in_.identify({.proof = security::PeerIdentity::Proof::kCertificate, .job = "job", .name = "clerk"});
  expect_refused(came_in_, observer, absl::StatusCode::kPermissionDenied, "clerk");
}

TEST_F(HandshakeTest, StrangerWaitsUntilTheGroupNamesIt) {
  EXPECT_EQ(came_in_.receive(hello("late", 66), group_).action, Action::kHold);
  group_.workers[66] = {"late", Standing::kMember};
  EXPECT_EQ(came_in_.receive(hello("late", 66), group_).action, Action::kAdmit);
}

TEST_F(HandshakeTest, UnknownWorkerThatAnswersIsRefusedNotHeld) {
  expect_refused(made_, hello("late", 66, 0), absl::StatusCode::kNotFound, "does not match a member");
}

TEST_F(HandshakeTest, MessageAboutAStrangerWaitsUntilTheTimeoutIsOver) {
  // A Hello has a timer of its own.
  EXPECT_FALSE(came_in_.limit_wait());
  came_in_.admitted(hello("other", 22).hello());
  EXPECT_EQ(came_in_.receive(request(66), group_).action, Action::kHold);
  came_in_.hold();
  EXPECT_TRUE(came_in_.holds());
  EXPECT_TRUE(came_in_.limit_wait());
  EXPECT_FALSE(came_in_.limit_wait());
  came_in_.on_wait_expired();
  EXPECT_EQ(came_in_.receive(request(66), group_).action, Action::kDeliver);
  came_in_.released();
  EXPECT_FALSE(came_in_.holds());
  // The next message gets the full timeout again.
  EXPECT_EQ(came_in_.receive(request(77), group_).action, Action::kHold);
  EXPECT_TRUE(came_in_.limit_wait());
}

TEST_F(HandshakeTest, GoodbyeSaysWhetherTheWorkerIsLost) {
  EXPECT_EQ(came_in_.receive(goodbye_of(absl::CancelledError("end")), group_).action, Action::kPart);
  // The peer has not introduced itself.
  Handshake::Parting parting = came_in_.part(goodbye_of(absl::CancelledError("end")).goodbye());
  EXPECT_EQ(parting.lost, std::nullopt);
  EXPECT_EQ(parting.reason.code(), absl::StatusCode::kCancelled);
  parting = made_.part(goodbye_of(absl::CancelledError("end")).goodbye());
  EXPECT_EQ(parting.lost, WorkerState::kLeft);
  EXPECT_EQ(parting.reason.code(), absl::StatusCode::kUnavailable);
  parting = made_.part(goodbye_of(absl::AbortedError("declared dead by the test")).goodbye());
  EXPECT_EQ(parting.lost, WorkerState::kDead);
  EXPECT_EQ(parting.reason.code(), absl::StatusCode::kAborted);
  parting = made_.part(goodbye_of(absl::ResourceExhaustedError("too many workers")).goodbye());
  EXPECT_EQ(parting.lost, std::nullopt);
  EXPECT_EQ(parting.reason.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(parting.reason.message(), HasSubstr("refuses this worker: too many workers"));
}

TEST_F(HandshakeTest, OfTwoCrossingConnectionsTheFirstStaysUnlessThePeerIsSuspect) {
  EXPECT_TRUE(Handshake::takes_over(/*introduced=*/false, /*has_another=*/false, /*suspect=*/false));
  EXPECT_FALSE(Handshake::takes_over(true, true, false));
  EXPECT_TRUE(Handshake::takes_over(true, true, true));
  // The peer has not yet shown on the new connection that it is alive.
  EXPECT_FALSE(Handshake::takes_over(false, true, true));
}

}  // namespace
}  // namespace gradwire::rpc
