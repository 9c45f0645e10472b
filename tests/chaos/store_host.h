#pragma once

#include <memory>
#include <string>

#include "gradwire/base/free_port.h"
#include "gradwire/tests/chaos/worker_process.h"

namespace chaos {

// The store of one run in a process of its own, which can be paused, killed and started again.
class StoreHost {
 public:
  // `program`: of the store. `output_path`: for what it writes.
  StoreHost(std::string program, std::string output_path);

  int port() const { return port_; }
  void start();
  void kill();
  void pause();
  void carry_on();

 private:
  const std::string program_;
  const std::string output_path_;
  const int port_ = gradwire::free_port();
  std::unique_ptr<WorkerProcess> process_;
};

}  // namespace chaos
