#pragma once

#include <string>

#include "absl/time/time.h"

namespace gradwire::store {

// How an EtcdStore and etcd authenticate one another. Files are in PEM format. By default neither does.
struct EtcdSecurity {
  // Whether to use TLS. Also used if a file is given below, and for endpoints that begin with https://.
  bool tls = false;
  // Certificates of the authorities that sign etcd's certificates; if empty, gRPC's default authorities.
  // etcd's certificates must be issued for the hosts that the endpoints name.
  std::string authority_file;
  // This client's certificate and its key, if etcd requires one (--client-cert-auth). Set both or neither.
  std::string certificate_file, key_file;
  // User and password, if etcd has authentication enabled. The user needs a role that may read and write all
  // keys that begin with the store's prefix.
  std::string user, password;
};

// Options of an EtcdStore.
struct EtcdStoreOptions {
  // Limit for connecting to etcd; afterwards the store's timeout().
  absl::Duration timeout = absl::Seconds(300);
  // If not zero, every key that the store writes has a lease with this time to live. The store keeps the
  // lease alive while it exists and revokes it when it is closed; etcd then deletes the keys. So the keys are
  // deleted at most this long after their process has died, or has lost the connection to etcd. Rounded up to
  // seconds; etcd has a minimum of its own, usually 2 s. If zero, the keys stay.
  absl::Duration lease_ttl = absl::ZeroDuration();
  EtcdSecurity security = {};
};

}  // namespace gradwire::store
