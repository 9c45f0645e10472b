#pragma once

#include <memory>
#include <string>

#include "gradwire/base/free_port.h"
#include "gradwire/tests/chaos/worker_process.h"

namespace chaos {

// The store of one run, in a process of its own that can be paused, killed and started again.
class StoreHost {
 public:
  // `program`: the store's program. `output_path`: the file for its standard output and error.
  StoreHost(std::string program, std::string output_path);

  int port() const { return port_.number(); }
  void start();
  void kill();
  void pause();
  void resume();

 private:
  const std::string program_;
  const std::string output_path_;
  const gradwire::FreePort port_;
  std::unique_ptr<WorkerProcess> process_;
};

}  // namespace chaos
