#include "gradwire/tests/collectives/rendezvous_points.h"

#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "gradwire/base/free_port.h"
#include "gtest/gtest.h"

namespace gradwire::collectives {

std::string tcp_method() { return absl::StrCat("tcp://127.0.0.1:", free_port()); }

std::string multicast_method() { return absl::StrCat("tcp://239.255.77.2:", free_port()); }

std::string file_method() {
  static int files = 0;
  return absl::StrCat("file://", ::testing::TempDir(), "/rendezvous_", getpid(), "_", ++files);
}

void set_environment(int port, int rank, int world_size) {
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", absl::StrCat(port).c_str(), 1);
  setenv("RANK", absl::StrCat(rank).c_str(), 1);
  setenv("WORLD_SIZE", absl::StrCat(world_size).c_str(), 1);
}

}  // namespace gradwire::collectives
