#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "gradwire/rpc/agent.h"
#include "gradwire/rpc/options.h"
#include "gradwire/tests/rpc/exit_code.h"

namespace gradwire::rpc {

// A process of a test's. Killed at the end if it still runs.
class ChildProcess {
 public:
  explicit ChildProcess(std::vector<std::string> arguments);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  void signal(int number);
  void kill();
  // Returns when no thread of it runs any more.
  void stop();
  void carry_on();
  // The exit code; negative for a signal.
  int wait();

 private:
  pid_t pid_ = 0;
};

// A worker whose whole program is to join and serve (server.cc, or another). Its suspect_after is five
// intervals.
class ServerProcess : public ChildProcess {
 public:
  ServerProcess(const std::string& init_method, const std::string& name, int rank, int world_size,
                const HeartbeatOptions& heartbeat = {}, const std::string& program = "tests/rpc/server");
};

// Waits until `agent` takes the worker to be in this state; false after a minute.
bool reaches(const std::shared_ptr<Agent>& agent, const std::string& name, WorkerState state);

}  // namespace gradwire::rpc
