#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/core/options.h"
#include "gradwire/tests/rpc/exit_code.h"

namespace gradwire::rpc {

// A process that a test starts. The destructor kills it if it still runs.
class ChildProcess {
 public:
  explicit ChildProcess(std::vector<std::string> arguments);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  void signal(int number);
  void kill();
  // Pauses the process. Returns when none of its threads runs any more.
  void stop();
  // Ends the pause.
  void resume();
  // Waits for the end of the process. Returns its exit code, or minus the number of the signal that ended it.
  int wait();

 private:
  pid_t pid_ = 0;
};

// A worker process: server.cc, or another program that uses server_main(). Its suspect_after is five
// heartbeat intervals.
class ServerProcess : public ChildProcess {
 public:
  ServerProcess(const std::string& init_method, const std::string& name, int rank, int world_size,
                const HeartbeatOptions& heartbeat = {}, const std::string& program = "tests/rpc/server");
};

// Waits until the worker is in this state according to `agent`. Returns false if that takes too long
// (base/testing/eventually.h).
bool reaches(const std::shared_ptr<Agent>& agent, const std::string& name, WorkerState state);

}  // namespace gradwire::rpc
