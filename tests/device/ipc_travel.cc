#include "gradwire/tests/device/ipc_travel.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>

#include "gradwire/base/testing/eventually.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/tests/device/lag_device.h"
#include "gradwire/tests/device/lag_ipc.h"

namespace gradwire::lag {
namespace {

// Repeats a call with a tensor until `calls` in a row have made `copies` copies each in this process, and
// nobody was probing after them.
bool repeat_until(rpc::Agent& from, const std::string& to, int device, int calls, int64_t copies,
                  const std::function<bool()>& probing) {
  int in_a_row = 0;
  return eventually([&] {
    const int64_t before = ipc_counts().copies;
    const at::Tensor x = at::ones({4}).to(lag::device(device), /*non_blocking=*/true);
    (void)from.rpc_sync<at::Tensor>(to, rpc::Op("aten::mul"), x, 1);
    in_a_row = ipc_counts().copies - before >= copies && !probing() ? in_a_row + 1 : 0;
    return in_a_row == calls;
  });
}

}  // namespace

// A process counts only its own copies: here the one of the answer. A probe is a copy too, but not many of
// them follow each other.
bool warm_up_ipc(const std::shared_ptr<rpc::Agent>& from, const std::string& to, int device) {
  return repeat_until(*from, to, device, /*calls=*/5, /*copies=*/1,
                      [&] { return from->tables().sharing_probes > 0; });
}

IpcTravel::IpcTravel(const rpc::testing::Group& group, const std::vector<int>& devices, int64_t at_least)
    : at_least_(at_least) {
  for (std::size_t from = 0; from < group.size(); ++from) {
    for (std::size_t to = 0; to < group.size(); ++to) {
      if (from == to) continue;
      const std::string name = group[to]->get_worker_info().name;
      const auto probing = [&] {
        return group[from]->tables().sharing_probes + group[to]->tables().sharing_probes > 0;
      };
      // One copy of the argument and one of the result. In the first of these calls one may be of a probe.
      for (const int device : devices) {
        EXPECT_TRUE(repeat_until(*group[from], name, device, /*calls=*/2, /*copies=*/2, probing))
            << "tensors on lag:" << device << " do not travel by ipc to " << name;
      }
    }
  }
  before_ = ipc_counts().copies;
}

IpcTravel::~IpcTravel() { EXPECT_GE(ipc_counts().copies - before_, at_least_); }

std::shared_ptr<IpcTravel> IpcTravel::by(const std::string& channel, const rpc::testing::Group& group,
                                         const std::vector<int>& devices, int64_t at_least) {
  return channel == "ipc" ? std::make_shared<IpcTravel>(group, devices, at_least) : nullptr;
}

}  // namespace gradwire::lag
