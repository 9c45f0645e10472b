#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/io/descriptor.h"

namespace gradwire::transport {

// An address of the form "shm:<boot id>:<name>": a socket with that name in the abstract namespace of the
// host with that boot id.
struct ShmAddress {
  std::string boot_id;
  std::string name;

  std::string to_string() const;
  bool is_of_this_host() const;
};

// InvalidArgument for a malformed address.
absl::StatusOr<ShmAddress> parse_shm_address(absl::string_view text);

// Returns a new address on this host. Unavailable if the host has no boot id.
absl::StatusOr<ShmAddress> new_shm_address();

// The form that bind() and connect() take.
struct UnixAddress {
  sockaddr_un storage = {};
  socklen_t length = 0;
};
UnixAddress abstract_address(const ShmAddress& address);

// Returns a socket that listens at `address`. Unavailable with the cause.
absl::StatusOr<Descriptor> listen_at(const ShmAddress& address);

}  // namespace gradwire::transport
