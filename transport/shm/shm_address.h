#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/io/descriptor.h"

namespace gradwire::transport {

// "shm:<boot id>:<name>": a socket with that name in the abstract namespace of the host that was started so.
struct ShmAddress {
  std::string boot_id;
  std::string name;

  std::string to_string() const;
  bool is_of_this_host() const;
};

// InvalidArgument for what is no such address.
absl::StatusOr<ShmAddress> parse_shm_address(absl::string_view text);

// A new one, of this host. Unavailable when the host cannot be told from others.
absl::StatusOr<ShmAddress> new_shm_address();

// For bind and connect.
struct UnixAddress {
  sockaddr_un storage = {};
  socklen_t length = 0;
};
UnixAddress abstract_address(const ShmAddress& address);

// A socket that listens at `address`. Unavailable with the cause.
absl::StatusOr<Descriptor> listen_at(const ShmAddress& address);

}  // namespace gradwire::transport
