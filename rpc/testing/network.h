#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/mutex.h"
#include "gradwire/transport/transport.h"

namespace gradwire::rpc::testing {

// A network within the test. Its transports replace tcp. One thread delivers all messages in the order in
// which they were sent. So a test that sends messages itself decides the order in which an agent receives
// them. Connections are made and closed at once. A message is lost only if its connection closes first.
//
// Thread-safe. Must outlive its transports.
class Network {
 public:
  Network();
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  // Returns a transport for one worker. Its listen() assigns the address.
  std::unique_ptr<transport::Transport> transport();
  // Returns an argument for wrap_transports() that replaces each transport with one of this network.
  std::function<std::unique_ptr<transport::Transport>(std::unique_ptr<transport::Transport>)> wrapper();
  // Ends the time in which peers must introduce themselves: closes each accepted connection whose listener is
  // not introduced().
  void end_introductions();

 private:
  class Connection;
  class FakeTransport;

  void post(std::function<void()> task);
  void run();

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t next_address_ ABSL_GUARDED_BY(mutex_) = 1;
  HashMap<std::string, transport::Transport::AcceptHandler> listening_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<Connection>> accepted_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace gradwire::rpc::testing
