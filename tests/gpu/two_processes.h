#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/tests/rpc/server_process.h"

namespace gradwire::gpu_tests {

// Two workers in two processes that share the GPU: "worker0" in this process, and "worker1" in another one,
// which runs this same program. The destructor shuts both down.
class TwoProcesses {
 public:
  // `channel`: the only one that the workers may use besides "host".
  explicit TwoProcesses(const std::string& channel);
  ~TwoProcesses();
  TwoProcesses(const TwoProcesses&) = delete;
  TwoProcesses& operator=(const TwoProcesses&) = delete;

  const std::shared_ptr<rpc::Agent>& agent() const { return agent_; }
  // Kills the other process. The shutdown is not graceful then.
  void kill();

 private:
  std::shared_ptr<store::TcpStore> store_;
  std::unique_ptr<rpc::ChildProcess> child_;
  std::shared_ptr<rpc::Agent> agent_;
  bool graceful_ = true;
};

// Whether this build has the channel.
absl::Status find_channel(const std::string& channel);

// The argument with which this program is started as "worker1", and its main function.
inline constexpr char kWorkerFlag[] = "--gpu_worker=";
int run_worker(const std::string& argument);

}  // namespace gradwire::gpu_tests
