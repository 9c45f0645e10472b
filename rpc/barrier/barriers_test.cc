#include "gradwire/rpc/barrier/barriers.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/base/clock.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/rref/reference_codec.h"

namespace gradwire::rpc {
namespace {

// The answer to an arrival; nullopt before it.
using Reply = std::optional<absl::StatusOr<ServiceReply>>;

constexpr uint32_t kArrive = 12;

// An agent without connections, in a group of three.
class FakeHost : public ReferenceHost {
 public:
  // `loses`: whether worker 3 is lost as soon as somebody has asked for it.
  explicit FakeHost(bool loses) : loses_(loses) {}
  ~FakeHost() { executor_->shutdown(); }

  const Worker& self() const override { return workers_[0]; }
  Id next_id() override { return {1, ++last_id_}; }
  const std::shared_ptr<ThreadPool>& executor() const override { return executor_; }
  TimerQueue& timers() const override { return timers_; }
  const std::shared_ptr<FenceWatch>& fences() const override { return no_fences_; }
  const std::shared_ptr<StreamOrder>& stream_order() const override { return no_order_; }
  absl::StatusOr<Worker> find_worker_by_incarnation(uint64_t incarnation) const override {
    return workers_.at(incarnation - 1);
  }
  absl::Status worker_status(const Worker& worker) const override {
    if (!loses_ || worker.incarnation != 3 || times_asked_++ == 0) return absl::OkStatus();
    return absl::UnavailableError("worker \"c\" has died");
  }
  Future<ServiceReply> call_service(const Worker& to, uint32_t service, std::string body,
                                    std::unique_ptr<TensorSet>, const ServiceOptions& options) override {
    called_.emplace_back(to.name, service);
    const Promise<ServiceReply> promise(executor_);
    if (service == kArrive) {
      arrivals_.emplace_back(std::move(body), options);
      promise.set_error(absl::DeadlineExceededError("expired before it was sent"));
    }
    return promise.future();
  }
  void on_accused(uint64_t) override {}
  std::weak_ptr<Agent> weak_agent() override { return {}; }

  // The workers and services that were called.
  const std::vector<std::pair<std::string, uint32_t>>& called() const { return called_; }
  // The Arrive messages that were sent. Each fails with DeadlineExceeded.
  const std::vector<std::pair<std::string, ServiceOptions>>& arrivals() const { return arrivals_; }

 private:
  const std::vector<Worker> workers_ = {{"a", 0, 1}, {"b", 1, 2}, {"c", 2, 3}};
  const std::shared_ptr<ThreadPool> executor_ = std::make_shared<ThreadPool>(ThreadPool::Options());
  const std::shared_ptr<FenceWatch> no_fences_;
  const std::shared_ptr<StreamOrder> no_order_;
  mutable TimerQueue timers_;
  const bool loses_;
  uint64_t last_id_ = 0;
  std::vector<std::pair<std::string, uint32_t>> called_;
  std::vector<std::pair<std::string, ServiceOptions>> arrivals_;
  mutable int times_asked_ = 0;
};

// The arrival of worker "b" at a barrier of all three.
ServiceCall arrival(uint64_t number, Reply& answer) {
  proto::Arrive arrive;
  for (const uint64_t member : {1, 2, 3}) arrive.add_members(member);
  arrive.set_number(number);
  return {.from = {"b", 1, 2},
          .service = kArrive,
          .body = arrive.SerializeAsString(),
          .tensors = nullptr,
          .sender_devices = {},
          .fence = nullptr,
          .deadline = absl::InfiniteFuture(),
          .reply = [&answer](absl::StatusOr<ServiceReply> reply) { answer = std::move(reply); }};
}

// The agent reports a loss once. If that is before the arrival is in the table, the arrival itself must
// notice it: without a deadline it would wait indefinitely.
TEST(Barriers, MemberThatIsLostWhileAnotherArrivesEndsTheBarrier) {
  FakeHost host(/*loses=*/true);
  Barriers barriers(host);
  Reply answer;
  barriers.serve(arrival(0, answer));
  ASSERT_TRUE(answer.has_value() && answer->ok());
  proto::StatusValue status;
  ASSERT_TRUE(status.ParseFromString((*answer)->body));
  EXPECT_EQ(status.code(), static_cast<int>(absl::StatusCode::kUnavailable));
  EXPECT_TRUE(barriers.idle());
}

// Only a worker with a connection is watched. Worker "c" may have none.
TEST(Barriers, MemberThatHasNotComeIsAskedOnceWhetherItIsAlive) {
  FakeHost host(/*loses=*/false);
  Barriers barriers(host);
  Reply first, second;
  barriers.serve(arrival(0, first));
  barriers.serve(arrival(1, second));
  EXPECT_EQ(host.called(), (std::vector<std::pair<std::string, uint32_t>>{{"c", kPing}}));
  EXPECT_FALSE(first.has_value());
  barriers.shutdown(absl::CancelledError("the end"));
  ASSERT_TRUE(first.has_value() && second.has_value());
  EXPECT_TRUE(absl::IsCancelled(first->status()) && absl::IsCancelled(second->status()));
}

// The others would wait for it until their own deadlines.
TEST(Barriers, ALeaderThatWasNotReachedLearnsThatAMemberGaveUp) {
  FakeHost host(/*loses=*/false);
  Barriers barriers(host);
  const absl::Time before = Clock::system().now();
  for (uint64_t number = 0; number < 2; ++number) {
    const absl::Status status = barriers.wait({{"b", 1, 2}, {"a", 0, 1}}, before);
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  }
  ASSERT_EQ(host.arrivals().size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    proto::Arrive arrive;
    ASSERT_TRUE(arrive.ParseFromString(host.arrivals()[i].first));
    EXPECT_EQ(arrive.number(), i / 2);
    EXPECT_EQ(arrive.members_size(), 2);
  }
  const ServiceOptions& again = host.arrivals()[1].second;
  EXPECT_TRUE(again.repeat);
  EXPECT_GT(again.deadline, before);
  EXPECT_LT(again.deadline, absl::InfiniteFuture());
}

// Two threads of each worker are in barriers, and the arrivals of one overtake those of the other.
TEST(Barriers, AnArrivalAtAnEarlierBarrierIsAnswered) {
  FakeHost host(/*loses=*/false);
  Barriers barriers(host);
  const auto serve = [&barriers](const Worker& from, uint64_t number, Reply& answer) {
    ServiceCall call = arrival(number, answer);
    call.from = from;
    barriers.serve(std::move(call));
  };
  Reply answers[6];
  const std::vector<Worker> workers = {{"a", 0, 1}, {"b", 1, 2}, {"c", 2, 3}};
  for (int i = 0; i < 3; ++i) serve(workers[i], 1, answers[i]);
  for (int i = 0; i < 3; ++i) serve(workers[i], 0, answers[3 + i]);
  for (const Reply& answer : answers) {
    ASSERT_TRUE(answer.has_value() && answer->ok());
    EXPECT_EQ((*answer)->body, "");
  }
  EXPECT_TRUE(barriers.idle());
}

}  // namespace
}  // namespace gradwire::rpc
