#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/testing/log_lines.h"
#include "gradwire/codec/device_transfers.h"
#include "gradwire/codec/tensor_set.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/device/ipc_services.h"
#include "gradwire/rpc/empty_for.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/rpc/testing/group.h"
#include "gradwire/tests/device/ipc_travel.h"
#include "gradwire/tests/device/lag_device.h"
#include "gradwire/tests/device/lag_ipc.h"
#include "gradwire/tests/device_ipc/functions.h"

// The channel "ipc" between agents of one process, which see each other's memory as other processes would.
namespace gradwire::rpc {
namespace {

using namespace ipc_test;
using ::testing::HasSubstr;

at::Tensor on(int device, const at::Tensor& x) { return x.to(lag::device(device), /*non_blocking=*/true); }
void expect_equal(const at::Tensor& got, const at::Tensor& expected) {
  EXPECT_TRUE(at::equal(got.cpu(), expected)) << got.cpu() << "\n expected " << expected;
}
RpcBackendOptions ipc_only() {
  RpcBackendOptions options;
  options.channels = {"ipc"};
  return options;
}

// The destructor checks that nothing is in use on a device, or shared.
struct NothingLeft {
  ~NothingLeft() {
    const lag::IpcCounts counts = lag::ipc_counts();
    EXPECT_EQ(counts.made_events, 0);
    EXPECT_EQ(counts.opened_events, 0);
    EXPECT_EQ(counts.opened_memories, 0);
    EXPECT_EQ(lag::leftovers(), "");
  }
};

class Ipc : public ::testing::Test {
 protected:
  explicit Ipc(RpcBackendOptions options = ipc_only()) : group_(2, std::move(options)) {
    lag::set_lag({});
    EXPECT_TRUE(lag::warm_up_ipc(group_[0], "worker1"));
  }
  ~Ipc() override { group_.expect_empty(); }

  const NothingLeft after_the_group_;
  testing::Group group_;
};

// Stops all streams on which handlers and answers are decoded.
std::vector<std::unique_ptr<lag::StreamHold>> hold_pool(int device) {
  std::vector<std::unique_ptr<lag::StreamHold>> holds;
  for (int i = 0; i < 8; ++i) holds.push_back(std::make_unique<lag::StreamHold>(lag::new_stream(device)));
  return holds;
}

// The tensor that keep() has got. Its streams are not ordered before those of this thread.
at::Tensor kept_when_done() {
  lag::synchronize_all();
  return kept();
}

TEST_F(Ipc, ATensorMayBeChangedRightAfterTheCall) {
  const int64_t copies = lag::ipc_counts().copies;
  std::vector<Future<at::Tensor>> results;
  std::vector<at::Tensor> expected;
  for (int i = 0; i < 200; ++i) {
    const at::Tensor x = at::rand({1000 + 7 * i});
    at::Tensor y = on(0, x) * 3;
    results.push_back(group_[0]->rpc_async<&scale>("worker1", y, 2.0));
    y.zero_();
    expected.push_back(x * 3 * 2.0);
  }
  for (std::size_t i = 0; i < results.size(); ++i) expect_equal(results[i].wait(), expected[i]);
  EXPECT_EQ(lag::ipc_counts().copies - copies, 400);
}

TEST_F(Ipc, NoThreadWaitsForAStream) {
  const at::Tensor x = at::rand({5000});
  const int64_t waits = lag::counts().host_waits;
  Future<at::Tensor> result;
  {
    const c10::Stream stream = lag::new_stream(0);
    const c10::StreamGuard guard(stream);
    const at::Tensor there = on(0, x);
    lag::StreamHold busy(stream);
    result = group_[0]->rpc_async<&scale>("worker1", there * 5, 2.0);
    // The call is answered while its argument is still to be computed.
    EXPECT_TRUE(result.result().ok());
  }
  EXPECT_EQ(lag::counts().host_waits, waits);
  expect_equal(result.wait(), x * 5 * 2.0);
}

TEST_F(Ipc, MemoryIsUsedAgainOnlyAfterItWasRead) {
  const at::Tensor x = at::rand({100'000});
  auto holds = hold_pool(0);
  // Given away, so that the receiver reads this memory and no snapshot.
  group_[0]->rpc_sync<&keep>("worker1", on(0, x) + 1);
  EXPECT_TRUE(eventually([&] { return group_[0]->tables().open_transfers == 0; }));
  // The sender's memory is free now. A tensor that gets it must not disturb the copy, which has not begun.
  std::vector<at::Tensor> others;
  for (int i = 0; i < 10; ++i)
    others.push_back(at::full({100'000}, 7.0, at::TensorOptions().device(lag::device(0))));
  holds.clear();
  const at::Tensor arrived = kept_when_done();
  expect_equal(arrived, x + 1);
  expect_equal(others[0], at::full({100'000}, 7.0));
}

TEST_F(Ipc, MovedTensorsTravelWithoutASnapshot) {
  constexpr int64_t kSize = 1 << 20;
  const auto allocations_of_call = [&](bool moved) {
    const AgentGuard agent(group_[0]);
    at::Tensor x = empty_for("worker1", {kSize / 4}, at::TensorOptions().device(lag::device(0)));
    EXPECT_EQ(x.device(), lag::device(0));
    x.fill_(2.5);
    const int64_t before = lag::counts().allocations;
    Future<void> done = moved ? group_[0]->rpc_async<&keep>("worker1", std::move(x))
                              : group_[0]->rpc_async<&keep>("worker1", x);
    done.wait();
    const int64_t made = lag::counts().allocations - before;
    expect_equal(kept_when_done(), at::full({kSize / 4}, 2.5));
    return made;
  };
  // The receiver allocates its copy.
  EXPECT_EQ(allocations_of_call(/*moved=*/true), 1);
  EXPECT_EQ(allocations_of_call(/*moved=*/false), 2);
}

// A tensor that begins in the middle of its allocation, of which it is the only user.
TEST_F(Ipc, AMovedPartOfAnAllocationIsReadAtItsPlace) {
  const at::Tensor x = at::arange(5000).to(at::kFloat);
  at::Tensor part = on(0, x);
  // As slice() does, but without the handle to the original that it keeps.
  part.unsafeGetTensorImpl()->set_sizes_and_strides(at::IntArrayRef{3000}, at::IntArrayRef{1}, 1000);
  const int64_t before = lag::counts().allocations;
  group_[0]->rpc_sync<&keep>("worker1", std::move(part));
  EXPECT_EQ(lag::counts().allocations - before, 1);
  expect_equal(kept_when_done(), x.slice(0, 1000, 4000));
}

TEST_F(Ipc, ThousandsOfMessagesUseFewEventsAndAllocations) {
  const at::Tensor x = on(0, at::rand({300}));
  std::deque<Future<at::Tensor>> window;
  int64_t made = 0;
  const int64_t memories = lag::ipc_counts().memories_ever;
  for (int i = 0; i < 3000; ++i) {
    window.push_back(group_[0]->rpc_async<&echo>("worker1", x));
    if (window.size() == 16) {
      (void)window.front().wait();
      window.pop_front();
    }
    made = std::max(made, lag::ipc_counts().made_events);
  }
  while (!window.empty()) {
    (void)window.front().wait();
    window.pop_front();
  }
  const lag::IpcCounts counts = lag::ipc_counts();
  // Pairs for the transfers that have not been reported yet, in both directions.
  EXPECT_LT(made, 1500);
  EXPECT_LE(counts.opened_events, 512);
  EXPECT_LT(counts.memories_ever - memories, 1500);
}

TEST_F(Ipc, SeveralDevicesAndKindsOfTensors) {
  const at::Tensor x = at::rand({40, 50});
  // The devices are probed one by one.
  EXPECT_TRUE(eventually([&] {
    const int64_t before = lag::ipc_counts().copies;
    (void)group_[0]->rpc_sync<&echo>("worker1", on(1, x));
    return lag::ipc_counts().copies - before >= 2 && group_[0]->tables().sharing_probes == 0;
  }));
  for (const at::Tensor& y : {x, x.t(), x.slice(1, 3, 40, 2), x > 0.5, x.to(at::kHalf), at::zeros({0, 3}),
                              at::complex(x, x), at::arange(10)}) {
    for (int device = 0; device < 2; ++device) {
      const at::Tensor got = group_[0]->rpc_sync<&echo>("worker1", on(device, y));
      EXPECT_EQ(got.device(), lag::device(device));
      expect_equal(got, y);
    }
  }
  // Through a map to another device.
  const Destination mapped = Destination("worker1").with_device_map({{"lag:0", "lag:1"}});
  EXPECT_EQ(group_[0]->rpc_sync<&device_of>(mapped, on(0, x)), "lag:1");
  expect_equal(group_[0]->rpc_sync<&scale>(mapped, on(0, x), 2.0), x * 2.0);
}

TEST_F(Ipc, RequestsThatAreNeverDecodedGiveTheirMemoryBack) {
  RpcBackendOptions options = ipc_only();
  options.num_worker_threads = 1;
  options.max_worker_threads = 1;
  testing::Group group(2, options);
  ASSERT_TRUE(lag::warm_up_ipc(group[0], "worker1"));
  Future<void> stays = group[0]->rpc_async<&stay>("worker1");
  // A request that overtakes it would be served.
  wait_for_stay();
  const at::Tensor x = on(0, at::rand({1000}));
  std::vector<Future<at::Tensor>> calls;
  for (int i = 0; i < 20; ++i) {
    calls.push_back(group[0]->rpc_async<&echo>(
        Destination("worker1").with_timeout(i % 2 == 0 ? absl::Milliseconds(20) : absl::Seconds(60)), x));
  }
  for (int i = 1; i < 20; i += 2) calls[i].cancel();
  int failed = 0;
  for (const Future<at::Tensor>& call : calls) failed += call.result().ok() ? 0 : 1;
  // A pool whose threads are all blocked starts another one after 10 ms, so a few calls may be served.
  EXPECT_GT(failed, 0);
  go_on();
  stays.wait();
  group.expect_empty();
}

TEST_F(Ipc, LateAnswersGiveTheirMemoryBack) {
  // The handler is occupied until its caller has given up; then the answer is late.
  for (int i = 0; i < 5; ++i) {
    const Future<at::Tensor> call =
        group_[0]->rpc_async<at::Tensor>(Destination("worker1").with_timeout(absl::Seconds(60)),
                                         Op("aten::mul"), on(0, at::ones({100})), on(0, at::ones({100})));
    call.cancel();
    (void)call.result();
  }
  group_.expect_empty();
}

TEST_F(Ipc, MalformedReportsAreRefused) {
  const Worker to = group_[1]->services().self();
  const auto report = [&](std::vector<uint64_t> numbers) {
    proto::TransfersConsumed message;
    for (uint64_t number : numbers) message.add_numbers(number);
    return group_[0]
        ->services()
        .call_service(to, kTransfersConsumed, message.SerializeAsString(), nullptr,
                      {absl::Now() + absl::Seconds(30)})
        .result()
        .status();
  };
  EXPECT_EQ(report({1'000'000}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(report({0}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(report({1, 1}).code(), absl::StatusCode::kInvalidArgument);
  // A repeated report of a transfer that has ended changes nothing.
  EXPECT_TRUE(report({1}).ok());
  EXPECT_TRUE(report({1}).ok());
  const at::Tensor x = at::rand({100});
  expect_equal(group_[0]->rpc_sync<&echo>("worker1", on(0, x)), x);
}

TEST(IpcMemory, IsClosedAtTheEndOfTheAgentWhenItHasBeenRead) {
  lag::set_lag({});
  const NothingLeft after_the_group;
  testing::Group group(2, ipc_only());
  ASSERT_TRUE(lag::warm_up_ipc(group[0], "worker1"));
  auto holds = hold_pool(0);
  group[0]->rpc_sync<&keep>("worker1", on(0, at::rand({1000})) + 1);
  (void)kept();
  std::thread end([&] { group.shut_down(); });
  // Both agents have closed what they need no more.
  EXPECT_TRUE(eventually([] { return lag::ipc_counts().opened_events == 0; }));
  EXPECT_GT(lag::ipc_counts().opened_memories, 0);
  holds.clear();
  end.join();
  EXPECT_EQ(lag::ipc_counts().opened_memories, 0);
}

// The agents end while a copy from the memory of the sender has not begun, and do not wait for it any longer.
TEST(IpcMemory, StaysOpenUntilItHasBeenRead) {
  const NothingLeft after_the_test;
  lag::set_lag({});
  const at::Tensor x = at::rand({10'000});
  std::vector<std::unique_ptr<lag::StreamHold>> holds;
  {
    testing::Group group(2, ipc_only());
    ASSERT_TRUE(lag::warm_up_ipc(group[0], "worker1"));
    lag::synchronize_all();
    holds = hold_pool(0);
    group[0]->rpc_sync<&keep>("worker1", on(0, x));
    group.shut_down();
  }
  EXPECT_GT(lag::ipc_counts().opened_memories, 0);
  holds.clear();
  expect_equal(kept_when_done(), x);
  // As a later agent does.
  EXPECT_TRUE(tensor_backend()->share_devices({})->sweep());
}

// ---- Where the channel cannot be used.

// The lines of the log about memory that cannot be shared.
std::vector<std::string> calls_with_fault(std::atomic<bool>& fault) {
  lag::set_lag({});
  ::testing::internal::CaptureStderr();
  fault = true;
  {
    testing::Group group(2, ipc_only());
    const at::Tensor x = at::rand({1000});
    for (int i = 0; i < 20; ++i) expect_equal(group[0]->rpc_sync<&scale>("worker1", on(0, x), 2.0), x * 2.0);
    EXPECT_TRUE(eventually(
        [&] { return group[0]->tables().sharing_probes == 0 && group[1]->tables().sharing_probes == 0; }));
    for (int i = 0; i < 5; ++i) expect_equal(group[0]->rpc_sync<&echo>("worker1", on(0, x)), x);
    group.expect_empty();
  }
  fault = false;
  EXPECT_EQ(lag::ipc_counts().made_events, 0);
  return captured_lines("cannot share");
}

TEST(IpcFallback, OneLineSaysWhyMemoryCannotBeShared) {
  const std::pair<std::atomic<bool>*, const char*> faults[] = {
      {&lag::ipc_faults().no_sharing, "the driver has no support for sharing"},
      {&lag::ipc_faults().no_identity, "the driver does not know the device's name"},
      {&lag::ipc_faults().no_export, "the driver refuses to export memory"},
      {&lag::ipc_faults().no_event, "the driver refuses to make a shared event"},
      {&lag::ipc_faults().no_open, "the driver refuses to open"},
      {&lag::ipc_faults().wrong_memory, "the other process has read other bytes than were written"},
  };
  for (const auto& [fault, reason] : faults) {
    const std::vector<std::string> lines = calls_with_fault(*fault);
    // One line for each direction.
    EXPECT_EQ(lines.size(), 2u) << reason << ":\n" << absl::StrJoin(lines, "\n");
    for (const std::string& line : lines) {
      EXPECT_THAT(line, HasSubstr(reason));
      EXPECT_THAT(line, HasSubstr("cannot share the memory of lag:0 with worker \"worker"));
    }
  }
  EXPECT_EQ(lag::leftovers(), "");
}

TEST(IpcFallback, TheChannelHostDoesNotShare) {
  RpcBackendOptions options;
  options.channels = {"host"};
  testing::Group group(2, options);
  const int64_t copies = lag::ipc_counts().copies;
  const at::Tensor x = at::rand({1000});
  for (int i = 0; i < 10; ++i) expect_equal(group[0]->rpc_sync<&echo>("worker1", on(0, x)), x);
  EXPECT_EQ(lag::ipc_counts().copies, copies);
}

}  // namespace
}  // namespace gradwire::rpc
