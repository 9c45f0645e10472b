// Two workers whose tensors arrive on different devices from those that they come from.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "gradwire/base/testing/eventually.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/tests/device/lag_device.h"
#include "gradwire/tests/device/lag_ipc.h"
#include "gradwire/tests/device_ipc/functions.h"

namespace gradwire::rpc {
namespace {

std::shared_ptr<Agent> start(const std::string& name, int rank, RpcBackendOptions options,
                             const std::shared_ptr<store::Store>& store) {
  options.store = store;
  options.channels = {"ipc"};
  return Agent::start(name, rank, 2, options);
}

// Each worker accepts tensors on one device only, but reads those of the other one from another device.
TEST(MirroredMaps, TensorsTravelByIpc) {
  lag::set_lag({});
  const auto store = std::make_shared<store::HashStore>();
  RpcBackendOptions there, back;
  there.set_device_map("b", {{"lag:0", "lag:1"}});
  back.set_device_map("a", {{"lag:1", "lag:0"}});
  std::shared_ptr<Agent> b;
  std::thread other([&] { b = start("b", 1, back, store); });
  const std::shared_ptr<Agent> a = start("a", 0, there, store);
  other.join();

  const auto travels = [](Agent& from, const std::string& to, int device) {
    const at::Tensor x = at::rand({1000});
    const int64_t copies = lag::ipc_counts().copies;
    const at::Tensor y = from.rpc_sync<&ipc_test::scale>(to, x.to(lag::device(device)), 2.0);
    EXPECT_EQ(y.device(), lag::device(device));
    EXPECT_TRUE(at::equal(y.cpu(), x * 2.0));
    // The argument and the result.
    return lag::ipc_counts().copies - copies == 2;
  };
  EXPECT_TRUE(eventually([&] { return travels(*a, "b", 0); }));
  EXPECT_TRUE(eventually([&] { return travels(*b, "a", 1); }));
  EXPECT_EQ(a->rpc_sync<&ipc_test::device_of>("b", at::ones({2}, lag::device(0))), "lag:1");

  std::thread leaving([&] { b->shutdown(); });
  a->shutdown();
  leaving.join();
}

}  // namespace
}  // namespace gradwire::rpc
