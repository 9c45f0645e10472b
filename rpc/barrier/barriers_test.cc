#include "gradwire/rpc/barrier/barriers.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/rref/reference_codec.h"

namespace gradwire::rpc {
namespace {

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
  Future<ServiceReply> call_service(const Worker& to, uint32_t service, std::string,
                                    std::unique_ptr<TensorSet>, const ServiceOptions&) override {
    called_.emplace_back(to.name, service);
    return Promise<ServiceReply>(executor_).future();
  }
  void on_accused(uint64_t) override {}
  std::weak_ptr<Agent> weak_agent() override { return {}; }

  // The workers and services that were called.
  const std::vector<std::pair<std::string, uint32_t>>& called() const { return called_; }

 private:
  const std::vector<Worker> workers_ = {{"a", 0, 1}, {"b", 1, 2}, {"c", 2, 3}};
  const std::shared_ptr<ThreadPool> executor_ = std::make_shared<ThreadPool>(ThreadPool::Options());
  const std::shared_ptr<FenceWatch> no_fences_;
  const std::shared_ptr<StreamOrder> no_order_;
  mutable TimerQueue timers_;
  const bool loses_;
  uint64_t last_id_ = 0;
  std::vector<std::pair<std::string, uint32_t>> called_;
  mutable int times_asked_ = 0;
};

// The arrival of worker "b" at a barrier of all three.
ServiceCall arrival(uint64_t number, std::optional<ServiceReply>& answer) {
  proto::Arrive arrive;
  for (const uint64_t member : {1, 2, 3}) arrive.add_members(member);
  arrive.set_number(number);
  return {.from = {"b", 1, 2},
          .service = 12,
          .body = arrive.SerializeAsString(),
          .tensors = nullptr,
          .sender_devices = {},
          .fence = nullptr,
          .deadline = absl::InfiniteFuture(),
          .reply = [&answer](absl::StatusOr<ServiceReply> reply) { answer = *std::move(reply); }};
}

// The agent reports a loss once. If that is before the arrival is in the table, the arrival itself must
// notice it: without a deadline it would wait indefinitely.
TEST(Barriers, MemberThatIsLostWhileAnotherArrivesEndsTheBarrier) {
  FakeHost host(/*loses=*/true);
  Barriers barriers(host);
  std::optional<ServiceReply> answer;
  barriers.serve(arrival(0, answer));
  ASSERT_TRUE(answer.has_value());
  proto::StatusValue status;
  ASSERT_TRUE(status.ParseFromString(answer->body));
  EXPECT_EQ(status.code(), static_cast<int>(absl::StatusCode::kUnavailable));
  EXPECT_TRUE(barriers.idle());
}

// Only a worker with a connection is watched. Worker "c" may have none.
TEST(Barriers, MemberThatHasNotComeIsAskedOnceWhetherItIsAlive) {
  FakeHost host(/*loses=*/false);
  Barriers barriers(host);
  std::optional<ServiceReply> first, second;
  barriers.serve(arrival(0, first));
  barriers.serve(arrival(1, second));
  EXPECT_EQ(host.called(), (std::vector<std::pair<std::string, uint32_t>>{{"c", kPing}}));
  EXPECT_FALSE(first.has_value());
  barriers.shutdown(absl::CancelledError("the end"));
  EXPECT_TRUE(first.has_value() && second.has_value());
}

}  // namespace
}  // namespace gradwire::rpc
