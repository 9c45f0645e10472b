#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "gradwire/base/mutex.h"
#include "gradwire/transport/transport.h"

namespace gradwire::rpc::testing {

// A network within the test, whose transports stand in for tcp. One thread delivers everything in the order
// in which it was sent, so that a test that sends by hand decides the order of all that an agent hears.
// Connections are made and closed at once; nothing is lost but what is under way when its connection closes.
//
// Thread-safe. Outlives its transports.
class Network {
 public:
  Network();
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  // One worker's; its address is made by listen().
  std::unique_ptr<transport::Transport> transport();
  // For wrap_transports().
  std::function<std::unique_ptr<transport::Transport>(std::unique_ptr<transport::Transport>)> wrapper();
  // The time for introductions is over: ends the connections that were accepted and whose listener says that
  // it was not introduced().
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
  absl::flat_hash_map<std::string, transport::Transport::AcceptHandler> listening_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<Connection>> accepted_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace gradwire::rpc::testing
