#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/transport/event_loop.h"

namespace gradwire::rpc::testing {

// Three workers in one process, "worker0" to "worker2", which call one another. A worker that does not
// respond is dead after kDeadAfter. For tests of threads that block.
class BlockedWorkers {
 public:
  static constexpr std::size_t kSize = 3;
  static constexpr absl::Duration kDeadAfter = absl::Milliseconds(1500);

  BlockedWorkers();
  // Shuts the workers down, not gracefully.
  ~BlockedWorkers();
  BlockedWorkers(const BlockedWorkers&) = delete;
  BlockedWorkers& operator=(const BlockedWorkers&) = delete;

  Agent& operator[](std::size_t rank) { return *agents_.at(rank); }
  transport::EventLoop& loop(std::size_t rank) { return *loops_.at(rank); }
  // Whether a call of worker `to` by worker `from` returns what it should. Throws the error of the call.
  bool call(std::size_t from, std::size_t to);

  // Blocks the calling thread until the end of expect_nobody_waits(), as code of the program may. The test
  // fails if the thread is on duty (base/duty.h), or is that of the test. Without effect except while that
  // function runs.
  static void block();
  // For a thread that blocks in another way: expect_nobody_waits() goes on.
  static void blocks();
  // Calls `start`, after which something blocks, and keeps what it returns until the end. Meanwhile, for
  // longer than kDeadAfter, all workers answer, none is declared dead, and all read their connections.
  // Captures standard error.
  void expect_nobody_waits(const std::function<std::shared_ptr<void>()>& start);

 private:
  std::vector<std::shared_ptr<transport::EventLoop>> loops_;
  std::vector<std::shared_ptr<Agent>> agents_;
};

}  // namespace gradwire::rpc::testing
