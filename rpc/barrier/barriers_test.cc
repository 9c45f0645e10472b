#include "gradwire/rpc/barrier/barriers.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "gradwire/proto/rpc.pb.h"

namespace gradwire::rpc {
namespace {

// An agent without connections, in a group of three. Worker 3 is lost as soon as somebody has asked for it.
class LosingHost : public ReferenceHost {
 public:
  ~LosingHost() { executor_->shutdown(); }

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
    if (worker.incarnation != 3 || times_asked_++ == 0) return absl::OkStatus();
    return absl::UnavailableError("worker \"c\" has died");
  }
  Future<ServiceReply> call_service(const Worker&, uint32_t, std::string, std::unique_ptr<TensorSet>,
                                    const ServiceOptions&) override {
    return Promise<ServiceReply>(executor_).future();
  }
  void on_accused(uint64_t) override {}
  std::weak_ptr<Agent> weak_agent() override { return {}; }

 private:
  const std::vector<Worker> workers_ = {{"a", 0, 1}, {"b", 1, 2}, {"c", 2, 3}};
  const std::shared_ptr<ThreadPool> executor_ = std::make_shared<ThreadPool>(ThreadPool::Options());
  const std::shared_ptr<FenceWatch> no_fences_;
  const std::shared_ptr<StreamOrder> no_order_;
  mutable TimerQueue timers_;
  uint64_t last_id_ = 0;
  mutable int times_asked_ = 0;
};

// The agent reports a loss once. If that is before the arrival is in the table, the arrival itself must
// notice it: without a deadline it would wait indefinitely.
TEST(Barriers, MemberThatIsLostWhileAnotherArrivesEndsTheBarrier) {
  LosingHost host;
  Barriers barriers(host);
  proto::Arrive arrive;
  for (const uint64_t member : {1, 2, 3}) arrive.add_members(member);
  std::optional<ServiceReply> answer;
  barriers.serve({.from = {"b", 1, 2},
                  .service = 12,
                  .body = arrive.SerializeAsString(),
                  .tensors = nullptr,
                  .sender_devices = {},
                  .fence = nullptr,
                  .deadline = absl::InfiniteFuture(),
                  .reply = [&](absl::StatusOr<ServiceReply> reply) { answer = *std::move(reply); }});
  ASSERT_TRUE(answer.has_value());
  proto::StatusValue status;
  ASSERT_TRUE(status.ParseFromString(answer->body));
  EXPECT_EQ(status.code(), static_cast<int>(absl::StatusCode::kUnavailable));
  EXPECT_TRUE(barriers.idle());
}

}  // namespace
}  // namespace gradwire::rpc
