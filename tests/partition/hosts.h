#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"

namespace chaos {

// Hosts on one machine: network namespaces, each joined by a pair of virtual Ethernet devices to a bridge in
// this process's own namespace. They go with the processes; nothing is left behind, also after a crash. Needs
// root.
//
// Not thread-safe.
class Hosts {
 public:
  // Moves this process into a namespace of its own, with the bridge. Before it has threads. Unavailable with
  // the cause where that does not work here.
  static absl::Status enter();

  // Where the others reach this process.
  static std::string own_address() { return "10.77.0.254"; }
  // Joins the namespace of process `pid`, which has left this one (unshare -n), as host `number`, from 1 on.
  static absl::Status join(int number, pid_t pid);
  // From now on nothing gets from this host to any other, or back; its own links stay up, so that it sees
  // nothing but silence. And the opposite.
  static absl::Status cut(int number);
  static absl::Status heal(int number);
};

}  // namespace chaos
