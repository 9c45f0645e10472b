#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gradwire::bench {

// Simulates two hosts on one machine: two network namespaces with a link (veth) between them. A process
// enters a namespace with setns(2). The namespaces have no names. They are removed when this object is
// destroyed and all processes in them have ended.
class SplitNetwork {
 public:
  // Requires root rights and the program ip. Returns Unavailable, with the reason, if the machine does not
  // allow it.
  static absl::StatusOr<std::unique_ptr<SplitNetwork>> make();
  ~SplitNetwork();
  SplitNetwork(const SplitNetwork&) = delete;
  SplitNetwork& operator=(const SplitNetwork&) = delete;

  // Descriptors for setns(2).
  int left_fd() const { return left_; }
  int right_fd() const { return right_; }
  static std::string left_address() { return "10.118.7.1"; }
  static std::string right_address() { return "10.118.7.2"; }

 private:
  SplitNetwork(int left, int right) : left_(left), right_(right) {}

  const int left_;
  const int right_;
};

// Takes down the link of the network namespace of process `pid`, which must be on the right host. No process
// gets an error: packets are lost silently.
absl::Status cut_link(pid_t pid);

}  // namespace gradwire::bench
