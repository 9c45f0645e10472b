#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gradwire::bench {

// Two hosts on one: two network namespaces with a link (veth) between them. Processes enter one with
// setns(2). Both namespaces have no name, and end with this object and the processes in them.
class SplitNetwork {
 public:
  // Unavailable, with the reason, where the machine does not allow it: it takes the rights of root and the
  // program ip.
  static absl::StatusOr<std::unique_ptr<SplitNetwork>> make();
  ~SplitNetwork();
  SplitNetwork(const SplitNetwork&) = delete;
  SplitNetwork& operator=(const SplitNetwork&) = delete;

  // For setns.
  int left_fd() const { return left_; }
  int right_fd() const { return right_; }
  static std::string left_address() { return "10.118.7.1"; }
  static std::string right_address() { return "10.118.7.2"; }

 private:
  SplitNetwork(int left, int right) : left_(left), right_(right) {}

  const int left_;
  const int right_;
};

// Cuts the link of the network that process `pid`, on the right, lives in. Nobody is told: what is sent is
// lost.
absl::Status cut_link(pid_t pid);

}  // namespace gradwire::bench
