#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/profile/call_profiler.h"
#include "gradwire/rpc/stream.h"
#include "gradwire/rpc/testing/faults.h"
#include "gradwire/rpc/testing/group.h"

// A take that its reader has chosen, and sends only after the stream has ended.
namespace gradwire::rpc {
namespace {

class Seen final : public ProfiledCall {
 public:
  bool wants_events() const override { return false; }
  void end(const Events&) override {}
};

// Stops the first take that is sent while it is armed, on the thread that sends it.
class HeldTake final : public CallProfiler {
 public:
  bool active() const override { return armed; }
  std::unique_ptr<ProfiledCall> begin_call(const CallLabel& call) override {
    if (absl::EndsWith(call.callee, ".take") && armed.exchange(false)) {
      held = true;
      EXPECT_TRUE(eventually([this] { return released.load(); }));
    }
    return std::make_unique<Seen>();
  }
  std::unique_ptr<ProfiledHandler> begin_handler(const CallLabel&, bool) override { return nullptr; }

  std::atomic<bool> armed{false};
  std::atomic<bool> held{false};
  std::atomic<bool> released{false};
};

HeldTake& held_take() {
  static auto* const instance = new HeldTake;
  return *instance;
}
const bool installed = [] {
  set_call_profiler(&held_take());
  return true;
}();

Promise<void>& first_gate() {
  static auto* const gate = new Promise<void>;
  return *gate;
}
Promise<void>& second_gate() {
  static auto* const gate = new Promise<void>;
  return *gate;
}

Stream<int64_t> two_items() {
  co_await first_gate().future();
  co_yield 1;
  co_await second_gate().future();
  co_yield 2;
}
GRADWIRE_RPC(two_items)

TEST(LateTake, IsNotCancelledAndKeepsNoOtherWaiting) {
  ASSERT_TRUE(installed);
  std::atomic<int> cancels{0};
  RpcBackendOptions options;
  options.hooks = testing::outgoing_faults([&cancels](const proto::Envelope& envelope) {
    if (envelope.has_cancel()) ++cancels;
    return transport::Fault::Kind::kDeliver;
  });
  testing::Group group(2, options);
  // The first takes are sent here.
  RemoteStream<int64_t> stream = group[0]->rpc_stream<&two_items>("worker1");
  // The answer with the first item makes room for others. A thread of the agent stops before the next one.
  held_take().armed = true;
  first_gate().set_value();
  ASSERT_TRUE(eventually([] { return held_take().held.load(); }));
  // This thread sends those behind it.
  EXPECT_EQ(stream.next(), 1);
  Future<std::optional<int64_t>> second = stream.next_async();
  second_gate().set_value();
  EXPECT_EQ(second.wait(), 2);
  EXPECT_EQ(stream.next(), std::nullopt);
  EXPECT_GT(group[0]->tables().pending_calls, 0u);
  held_take().released = true;
  EXPECT_TRUE(eventually(
      [&] { return group[0]->tables().pending_calls == 0 && group[1]->tables().served_calls == 0; }));
  EXPECT_EQ(cancels, 0);
}

}  // namespace
}  // namespace gradwire::rpc
