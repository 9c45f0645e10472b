#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/core/agent_statistics.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/stream.h"
#include "gradwire/rpc/testing/faults.h"
#include "gradwire/store/hash_store.h"

// A worker that leaves an open group refuses new calls, and serves those that belong to the work it has.
namespace gradwire::rpc {
namespace {

using ::testing::HasSubstr;
using transport::Fault;

constexpr absl::Duration kLeaveTimeout = absl::Seconds(60);

int64_t plus_one(int64_t value) { return value + 1; }
GRADWIRE_RPC(plus_one)
int64_t plus_one_again(int64_t value) { return value + 1; }
GRADWIRE_RPC_IDEMPOTENT(plus_one_again)
// The connection breaks at this request.
void cut_here() {}
GRADWIRE_RPC(cut_here)

// The handlers of a test wait here.
struct Door {
  Promise<void> entered;
  Promise<void> opened;
};
Door& door() {
  static auto* instance = new Door;
  return *instance;
}

Future<int64_t> wait_at_door() {
  door().entered.set_value();
  return door().opened.future().then([] { return int64_t{7}; });
}
GRADWIRE_RPC_IDEMPOTENT(wait_at_door)

// Waits at the door, and then calls the first worker of the path, which calls the second one, and so on.
// Returns the number of workers.
int64_t along(const std::vector<std::string>& path) {
  if (path.empty()) return 0;
  return 1 + rpc_sync<&along>(path.front(), std::vector<std::string>(path.begin() + 1, path.end()));
}
GRADWIRE_RPC(along)
int64_t wait_and_go_along(const std::vector<std::string>& path) {
  door().entered.set_value();
  door().opened.future().wait();
  return along(path);
}
GRADWIRE_RPC(wait_and_go_along)

Stream<int64_t> count_to(int64_t end) {
  for (int64_t i = 0; i < end; ++i) co_yield i;
}
GRADWIRE_RPC(count_to)

// An open group of a server, which leaves, and two clients.
class Leaving : public ::testing::Test {
 protected:
  Leaving() { door() = Door(); }
  ~Leaving() override {
    door().opened.set_value();
    if (leaver_.joinable()) leaver_.join();
    for (const std::shared_ptr<Agent>& agent : {client_, third_}) {
      if (agent != nullptr) agent->shutdown(true, kLeaveTimeout);
    }
  }

  void start(RpcBackendOptions options = {}) {
    options.store = std::make_shared<store::HashStore>();
    server_ = Agent::start("server", -1, 0, options);
    client_ = Agent::start("client", -1, 0, options);
    third_ = Agent::start("third", -1, 0, options);
    server_->wait_for_worker("third", kLeaveTimeout);
    client_->wait_for_worker("third", kLeaveTimeout);
  }

  // Begins to shut the server down. Returns when it refuses calls, with the error of the first one.
  absl::Status begin_to_leave() {
    leaver_ = std::thread([this] { left_ = status_of([&] { server_->shutdown(true, kLeaveTimeout); }); });
    absl::Status refused;
    const auto is_refused = [&] {
      refused = status_of([&] { client_->rpc_sync<&plus_one>("server", 1); });
      return !refused.ok();
    };
    EXPECT_TRUE(eventually(is_refused));
    return refused;
  }

  // Lets the handlers go on, and returns the result of the shutdown.
  absl::Status open_and_leave() {
    door().opened.set_value();
    leaver_.join();
    return left_;
  }

  std::shared_ptr<Agent> server_;
  std::shared_ptr<Agent> client_;
  std::shared_ptr<Agent> third_;

 private:
  std::thread leaver_;
  absl::Status left_;
};

TEST_F(Leaving, WorkerRefusesNewCallsAndFinishesThoseItHas) {
  start();
  RRef<int64_t> value = client_->remote<&plus_one>("server", 1);
  EXPECT_EQ(value.to_here(), 2);
  Future<int64_t> running = client_->rpc_async<&wait_at_door>("server");
  door().entered.future().wait();
  const absl::Status refused = begin_to_leave();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(refused.message(), HasSubstr("worker \"server\" is shutting down; the call has not run"));
  // Every kind of call, and every caller.
  EXPECT_EQ(status_of([&] { third_->rpc_sync<&plus_one>("server", 1); }).code(), refused.code());
  EXPECT_EQ(status_of([&] { client_->rpc_sync<&plus_one_again>("server", 1); }).code(), refused.code());
  EXPECT_EQ(status_of([&] { client_->remote<&plus_one>("server", 1).to_here(); }).code(), refused.code());
  EXPECT_EQ(status_of([&] { value.to_here(); }).code(), refused.code());
  EXPECT_EQ(status_of([&] { client_->rpc_stream<&count_to>("server", 3).next(); }).code(), refused.code());
  // A call that the handler of another worker makes is as new.
  EXPECT_EQ(status_of([&] { client_->rpc_sync<&along>("third", std::vector<std::string>{"server"}); }).code(),
            refused.code());
  EXPECT_FALSE(running.done());
  EXPECT_EQ(open_and_leave(), absl::OkStatus());
  EXPECT_EQ(running.wait(), 7);
}

TEST_F(Leaving, CallsInProgressMayCallBack) {
  start();
  Future<int64_t> running = client_->rpc_async<&wait_and_go_along>(
      "server", std::vector<std::string>{"third", "client", "server", "server", "third", "server"});
  door().entered.future().wait();
  EXPECT_FALSE(begin_to_leave().ok());
  EXPECT_EQ(open_and_leave(), absl::OkStatus());
  EXPECT_EQ(running.wait(), 6);
}

TEST_F(Leaving, HandlersThatItsOwnCallsWaitForMayCallBack) {
  start();
  Future<int64_t> own = server_->rpc_async<&wait_and_go_along>(
      "client", std::vector<std::string>{"third", "server", "client", "server"});
  door().entered.future().wait();
  EXPECT_FALSE(begin_to_leave().ok());
  EXPECT_EQ(open_and_leave(), absl::OkStatus());
  EXPECT_EQ(own.wait(), 4);
}

TEST_F(Leaving, StreamsThatItServesGoOn) {
  start();
  Future<int64_t> running = client_->rpc_async<&wait_at_door>("server");
  door().entered.future().wait();
  RemoteStream<int64_t> stream =
      client_->rpc_stream<&count_to>(StreamDestination("server", {.window_items = 2}), 100);
  EXPECT_EQ(stream.next(), 0);
  EXPECT_FALSE(begin_to_leave().ok());
  for (int64_t i = 1; i < 100; ++i) ASSERT_EQ(stream.next(), i);
  EXPECT_EQ(stream.next(), std::nullopt);
  EXPECT_EQ(open_and_leave(), absl::OkStatus());
  EXPECT_EQ(running.wait(), 7);
}

TEST_F(Leaving, RepetitionOfACallInProgressIsNoNewCall) {
  RpcBackendOptions options;
  const auto repetitions = std::make_shared<std::atomic<int>>(0);
  options.hooks = testing::outgoing_faults([repetitions](const proto::Envelope& envelope) {
    const proto::Request& request = envelope.request();
    if (absl::StrContains(request.function(), "wait_at_door") && request.attempt() == 2) ++*repetitions;
    return absl::StrContains(request.function(), "cut_here") ? Fault::Kind::kCut : Fault::Kind::kDeliver;
  });
  start(options);
  Future<int64_t> running = client_->rpc_async<&wait_at_door>("server");
  door().entered.future().wait();
  EXPECT_FALSE(begin_to_leave().ok());
  EXPECT_FALSE(client_->rpc_async<&cut_here>("server").result().ok());
  EXPECT_TRUE(eventually([&] { return *repetitions == 1; }));
  // It follows the repetition on the same connection.
  EXPECT_THAT(status_of([&] { client_->rpc_sync<&plus_one_again>("server", 1); }).message(),
              HasSubstr("is shutting down"));
  EXPECT_EQ(open_and_leave(), absl::OkStatus());
  EXPECT_EQ(running.wait(), 7);
}

}  // namespace
}  // namespace gradwire::rpc
