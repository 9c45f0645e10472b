#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/device/ipc_services.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/rpc/testing/faults.h"
#include "gradwire/rpc/testing/group.h"
#include "gradwire/tests/device/ipc_travel.h"
#include "gradwire/tests/device/lag_device.h"
#include "gradwire/tests/device/lag_ipc.h"
#include "gradwire/tests/device_ipc/functions.h"

// Connections break while messages of the channel "ipc" are on them.
namespace gradwire::rpc {
namespace {

using namespace ipc_test;
using transport::Fault;

at::Tensor on_lag(int device, const at::Tensor& x) {
  return x.to(lag::device(device), /*non_blocking=*/true);
}

// Decides for each outgoing message.
using Decide = std::function<Fault(const proto::Envelope&)>;

RpcBackendOptions with_faults(Decide decide) {
  RpcBackendOptions options;
  options.channels = {"ipc"};
  options.hooks = testing::outgoing_faults(std::move(decide));
  return options;
}

// Makes calls while connections break. Each one fails with Unavailable or has the right result.
void call_often(testing::Group& group, int calls, int& failed) {
  for (int i = 0; i < calls; ++i) {
    const at::Tensor x = at::rand({2000 + i});
    const absl::StatusOr<at::Tensor> got =
        group[0]->rpc_async<&scale>("worker1", on_lag(0, x) + 1, 2.0).result();
    if (got.ok()) {
      EXPECT_TRUE(at::equal(got->cpu(), (x + 1) * 2.0));
    } else {
      EXPECT_EQ(got.status().code(), absl::StatusCode::kUnavailable) << got.status();
      ++failed;
    }
  }
}

void expect_nothing_left(testing::Group& group) {
  group.expect_empty();
  // Memory that was sent is free. The agents have no tensors.
  EXPECT_TRUE(eventually([] { return lag::counts().blocks == 0; })) << lag::counts().blocks;
  group.shut_down();
  EXPECT_EQ(lag::ipc_counts().made_events, 0);
  EXPECT_EQ(lag::ipc_counts().opened_events, 0);
}

// Has `matches` choose the messages of which every third is lost with its connection.
int break_connections(std::function<bool(const proto::Envelope&)> matches) {
  lag::set_lag({});
  auto on_now = std::make_shared<std::atomic<bool>>(false);
  auto count = std::make_shared<std::atomic<int>>(0);
  int failed = 0;
  {
    testing::Group group(2, with_faults([=](const proto::Envelope& envelope) -> Fault {
                           if (!*on_now || !matches(envelope)) return {};
                           return {count->fetch_add(1) % 3 == 1 ? Fault::Kind::kCut : Fault::Kind::kDeliver};
                         }));
    EXPECT_TRUE(lag::warm_up_ipc(group[0], "worker1"));
    *on_now = true;
    call_often(group, 60, failed);
    *on_now = false;
    expect_nothing_left(group);
  }
  EXPECT_GE(*count, 2);
  return failed;
}

TEST(IpcLinks, LostRequestsAreReclaimed) {
  EXPECT_GT(break_connections([](const proto::Envelope& envelope) {
              return envelope.request().arguments().has_transfer();
            }),
            5);
}

TEST(IpcLinks, LostAnswersAreReclaimed) {
  EXPECT_GT(break_connections(
                [](const proto::Envelope& envelope) { return envelope.response().result().has_transfer(); }),
            5);
}

TEST(IpcLinks, LostReportsAreRepeated) {
  break_connections([](const proto::Envelope& envelope) {
    return envelope.request().service().number() == kTransfersConsumed;
  });
}

TEST(IpcLinks, LostReclaimsAreRepeated) {
  auto requests = std::make_shared<std::atomic<int>>(0);
  EXPECT_GT(break_connections([=](const proto::Envelope& envelope) {
              return envelope.request().arguments().has_transfer() ||
                     envelope.request().service().number() == kTransfersReclaim;
            }),
            5);
}

TEST(IpcLinks, LostProbesAreRepeated) {
  lag::set_lag({});
  auto probes = std::make_shared<std::atomic<int>>(0);
  testing::Group group(2, with_faults([=](const proto::Envelope& envelope) -> Fault {
                         if (envelope.request().service().number() != kSharingProbe) return {};
                         return {probes->fetch_add(1) < 2 ? Fault::Kind::kCut : Fault::Kind::kDeliver};
                       }));
  const at::Tensor x = at::ones({4});
  // Calls fail until both connections that break are known to be broken.
  EXPECT_TRUE(eventually([&] {
    const bool ok = group[0]->rpc_async<&echo>("worker1", on_lag(0, x)).result().ok();
    return ok && *probes > 2 && group[0]->tables().sharing_probes + group[1]->tables().sharing_probes == 0;
  }));
  {
    const lag::IpcTravel travel(group, {0});
    EXPECT_TRUE(at::equal(group[0]->rpc_sync<&echo>("worker1", on_lag(0, x)).cpu(), x));
  }
  expect_nothing_left(group);
}

TEST(IpcLinks, AnythingMayBeLost) {
  auto count = std::make_shared<std::atomic<uint64_t>>(0);
  break_connections([=](const proto::Envelope&) {
    // About every tenth message, in no regular pattern.
    const uint64_t mixed = (count->fetch_add(1) + 1) * 0x9e3779b97f4a7c15u;
    return (mixed >> 40) % 4 == 0;
  });
}

TEST(IpcLinks, AKilledAgentLeavesNothingBehind) {
  lag::set_lag({});
  for (std::size_t killed = 0; killed < 2; ++killed) {
    {
      RpcBackendOptions options;
      options.channels = {"ipc"};
      testing::Group group(2, options);
      ASSERT_TRUE(lag::warm_up_ipc(group[0], "worker1"));
      std::vector<Future<at::Tensor>> calls;
      for (int i = 0; i < 30; ++i)
        calls.push_back(group[0]->rpc_async<&scale>("worker1", on_lag(0, at::rand({3000})), 2.0));
      group.kill(killed);
      for (const Future<at::Tensor>& call : calls) (void)call.result();
    }
    EXPECT_TRUE(eventually([] { return lag::counts().blocks == 0; })) << lag::counts().blocks;
    EXPECT_EQ(lag::ipc_counts().made_events, 0);
    EXPECT_EQ(lag::ipc_counts().opened_events, 0);
  }
}

}  // namespace
}  // namespace gradwire::rpc
