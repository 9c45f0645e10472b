#pragma once

#include <string>

#include "absl/time/time.h"

namespace gradwire::store {

// How an EtcdStore shows who it is and knows whom it talks to. Files are PEM. Default: neither.
struct EtcdSecurity {
  // TLS. Also on when a file is given below, or for endpoints that begin with https://.
  bool tls = false;
  // Who signs etcd's certificates; empty: the authorities that gRPC knows by itself. Certificates must be
  // made out to the hosts that the endpoints name.
  std::string authority_file;
  // This client's own certificate and its key, where etcd asks for one (--client-cert-auth): both or neither.
  std::string certificate_file, key_file;
  // Where etcd has authentication enabled. The user needs a role that may read and write all keys that begin
  // with the store's prefix.
  std::string user, password;
};

struct EtcdStoreOptions {
  // For reaching etcd at first, and timeout() afterwards.
  absl::Duration timeout = absl::Seconds(300);
  // Not zero: every key that the store writes hangs on a lease, which the store keeps alive while it lives
  // and ends when it is closed; etcd deletes the keys with it. So they go at most this long after their
  // process has died, or could not reach etcd. Rounded up to seconds; etcd has a least value of its own,
  // usually 2 s. Zero: keys stay.
  absl::Duration lease_ttl = absl::ZeroDuration();
  EtcdSecurity security = {};
};

}  // namespace gradwire::store
