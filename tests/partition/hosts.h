#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"

namespace chaos {

// Simulates hosts on one machine. Each host is a network namespace. A pair of virtual Ethernet devices
// connects it to a bridge in the namespace of this process. The namespaces end with their processes, so
// nothing is left, also after a crash. Needs root.
//
// Not thread-safe.
class Hosts {
 public:
  // Moves this process into a new network namespace and creates the bridge there. Must be called before the
  // process has threads. Error: Unavailable, with the cause, if this machine does not permit it.
  static absl::Status enter();

  // The address of this process for all hosts.
  static std::string own_address() { return "10.77.0.254"; }
  // Connects the namespace of process `pid` to the bridge, as host `number` (1 or more). The process must
  // enter a namespace of its own within 10 s (unshare -n).
  static absl::Status join(int number, pid_t pid);
  // cut() stops all packets between this host and the others. The host's network device stays up, so its
  // connections only become silent. heal() ends that.
  static absl::Status cut(int number);
  static absl::Status heal(int number);
};

}  // namespace chaos
