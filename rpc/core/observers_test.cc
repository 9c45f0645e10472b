#include "gradwire/rpc/core/observers.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gradwire/base/manual_clock.h"
#include "gradwire/codec/codec_containers.h"

namespace gradwire::rpc {
namespace {

constexpr absl::Time kStart = absl::UnixEpoch();

class ObserversTest : public ::testing::Test, public ObserverSink {
 protected:
  absl::Status may_observe(const std::string& name) override {
    return name == "stranger" ? absl::PermissionDeniedError("no") : absl::OkStatus();
  }
  absl::StatusOr<std::string> inspect(const std::string& body) override {
    ++asked_;
    clock_.advance(takes_);
    if (body == "malformed") return absl::InvalidArgumentError("malformed");
    return "state for " + body;
  }

  absl::Status admit(uint64_t link, absl::Time now = kStart, const std::string& name = "inspect") {
    proto::Envelope hello;
    hello.mutable_hello()->set_name(name);
    const auto reply =
        observers_.receive(self_, {link, 0, [this, link] { left_.push_back(link); }}, hello, now);
    if (reply.ok()) {
      EXPECT_EQ((*reply)->hello().name(), "self");
      EXPECT_EQ((*reply)->hello().incarnation(), 7u);
      EXPECT_EQ((*reply)->hello().connection(), 0u);
    }
    return reply.status();
  }
  // The status of the answer.
  absl::Status ask(uint64_t link, absl::Time now, const std::string& body = "a") {
    proto::Envelope question;
    question.mutable_request()->set_call_id(9);
    question.mutable_request()->mutable_service()->set_body(body);
    const auto reply = observers_.receive(self_, {link, 0, nullptr}, question, now);
    EXPECT_TRUE(reply.ok()) << reply.status();
    if (!reply.ok()) return reply.status();
    const proto::Envelope answer = reply->has_value() ? **reply : observers_.answer(self_, link, question);
    EXPECT_EQ(answer.response().call_id(), 9u);
    const absl::Status status = status_from_proto(answer.response().status());
    EXPECT_EQ(answer.response().body(), status.ok() ? "state for " + body : "");
    return status;
  }

  const Worker self_{"self", 1, 7};
  ManualClock clock_;
  Observers observers_{clock_};
  // The time that an answer takes.
  absl::Duration takes_;
  int asked_ = 0;
  std::vector<uint64_t> left_;
};

TEST_F(ObserversTest, AreBoundedInNumber) {
  observers_.serve(*this, 2);
  EXPECT_TRUE(admit(1).ok());
  EXPECT_TRUE(admit(2).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(admit(3)));
  EXPECT_EQ(observers_.size(), 2u);
  observers_.remove(1);
  observers_.remove(1);
  EXPECT_TRUE(admit(3).ok());
  EXPECT_TRUE(left_.empty());
}

TEST_F(ObserversTest, AnIdleOneMakesRoomAndIsNotAnsweredAnyMore) {
  observers_.serve(*this, 2);
  EXPECT_TRUE(admit(1).ok());
  EXPECT_TRUE(admit(2).ok());
  const absl::Time later = kStart + Observers::kIdle;
  EXPECT_TRUE(ask(1, later - absl::Seconds(1)).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(admit(3, later - absl::Seconds(1))));
  EXPECT_TRUE(admit(3, later).ok());
  EXPECT_EQ(left_, std::vector<uint64_t>{2});
  EXPECT_EQ(observers_.size(), 2u);
  EXPECT_TRUE(absl::IsResourceExhausted(ask(2, later)));
}

TEST_F(ObserversTest, AreRefusedBySinkAndByALimitOfZero) {
  EXPECT_TRUE(absl::IsPermissionDenied(admit(1)));
  observers_.serve(*this, 2);
  EXPECT_TRUE(absl::IsPermissionDenied(admit(1, kStart, "stranger")));
  EXPECT_TRUE(admit(1).ok());
  observers_.remove(1);
  observers_.serve(*this, 0);
  EXPECT_TRUE(absl::IsPermissionDenied(admit(1)));
  EXPECT_EQ(observers_.size(), 0u);
}

TEST_F(ObserversTest, QuestionsWithoutAPauseAreNotAnswered) {
  observers_.serve(*this, 1);
  ASSERT_TRUE(admit(1).ok());
  EXPECT_TRUE(ask(1, kStart).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(ask(1, kStart + Observers::kPause - absl::Nanoseconds(1))));
  EXPECT_EQ(asked_, 1);
  EXPECT_TRUE(absl::IsInvalidArgument(ask(1, kStart + Observers::kPause, "malformed")));
  EXPECT_EQ(asked_, 2);
}

TEST_F(ObserversTest, OneQuestionOfALinkIsAnsweredAtATime) {
  observers_.serve(*this, 1);
  ASSERT_TRUE(admit(1).ok());
  proto::Envelope question;
  question.mutable_request();
  const auto slow = observers_.receive(self_, {1, 0, nullptr}, question, kStart);
  ASSERT_TRUE(slow.ok() && !slow->has_value());
  // It is being answered.
  EXPECT_TRUE(absl::IsResourceExhausted(ask(1, kStart + absl::Seconds(5))));
  EXPECT_EQ(asked_, 0);
  takes_ = absl::Seconds(5);
  (void)observers_.answer(self_, 1, question);
  EXPECT_FALSE(ask(1, kStart + absl::Seconds(10) - absl::Nanoseconds(1)).ok());
  EXPECT_TRUE(ask(1, kStart + absl::Seconds(10)).ok());
}

TEST_F(ObserversTest, ThePauseIsAsLongAsTheAnswerTook) {
  observers_.serve(*this, 1);
  ASSERT_TRUE(admit(1).ok());
  takes_ = absl::Milliseconds(200);
  EXPECT_TRUE(ask(1, kStart).ok());
  const absl::Time answered = kStart + takes_;
  const absl::Status refused = ask(1, answered + takes_ - absl::Nanoseconds(1));
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(refused.message().find("wait 200ms"), std::string::npos) << refused;
  EXPECT_EQ(asked_, 1);
  takes_ = absl::Milliseconds(1);
  EXPECT_TRUE(ask(1, answered + absl::Milliseconds(200)).ok());
  const absl::Time again = answered + absl::Milliseconds(201);
  EXPECT_FALSE(ask(1, again + Observers::kPause - absl::Nanoseconds(1)).ok());
  EXPECT_TRUE(ask(1, again + Observers::kPause).ok());
}

TEST_F(ObserversTest, OneThatDoesNotReadItsAnswersIsSentAway) {
  observers_.serve(*this, 1);
  ASSERT_TRUE(admit(1).ok());
  proto::Envelope question;
  question.mutable_request();
  EXPECT_TRUE(observers_.receive(self_, {1, Observers::kMaxQueuedBytes, nullptr}, question, kStart).ok());
  (void)observers_.answer(self_, 1, question);
  const auto later = kStart + absl::Seconds(1);
  EXPECT_TRUE(absl::IsResourceExhausted(
      observers_.receive(self_, {1, Observers::kMaxQueuedBytes + 1, nullptr}, question, later).status()));
}

}  // namespace
}  // namespace gradwire::rpc
