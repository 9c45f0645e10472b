#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/testing/group.h"

// For tests of the channel "ipc" on the test accelerator. Agents use it only when their probes have
// succeeded.
namespace gradwire::lag {

// Makes calls with tensors on a device of `from` until they, and their results, travel by the channel "ipc".
// `to` may be another process. Returns false if that takes too long.
bool warm_up_ipc(const std::shared_ptr<rpc::Agent>& from, const std::string& to, int device = 0);

// Has tensors travel by the channel "ipc" between all agents of a group, which are in this process, from the
// constructor on. The test fails in the destructor if fewer than `at_least` tensors have done so. It must be
// destroyed before the group.
class IpcTravel {
 public:
  // The devices of each agent from which tensors will be sent.
  static std::vector<int> all_devices() { return {0, 1, 2}; }

  explicit IpcTravel(const rpc::testing::Group& group, const std::vector<int>& devices = all_devices(),
                     int64_t at_least = 1);
  IpcTravel(const IpcTravel&) = delete;
  IpcTravel& operator=(const IpcTravel&) = delete;
  ~IpcTravel();

  // For tests whose parameter is the channel. nullptr for another channel than "ipc".
  static std::shared_ptr<IpcTravel> by(const std::string& channel, const rpc::testing::Group& group,
                                       const std::vector<int>& devices = all_devices(), int64_t at_least = 1);

  // For a test that turns out to send less.
  void expect_at_least(int64_t tensors) { at_least_ = tensors; }

 private:
  int64_t at_least_;
  int64_t before_ = 0;
};

}  // namespace gradwire::lag
