#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gradwire/store/etcd/etcd_options.h"
#include "gradwire/store/interface/store.h"

namespace gradwire::store {

class EtcdClient;
class EtcdLease;
class EtcdWriter;

// A store in an etcd v3 cluster, over etcd's own gRPC API. It is meant for jobs that must survive the loss of
// any host, and for jobs that already have an etcd. The key K is etcd's key `prefix`/K: give each job at one
// etcd a prefix of its own.
//
// The endpoints are the cluster's members, or some of them. If a member is gone, or cut off from the others,
// the store asks the next one. Calls are repeated until their deadline, also across restarts of etcd. Every
// change is made exactly once (store/etcd/etcd_writer.h says how). Waits and watches resume at the revision
// that they had reached. Calls fail with:
//   Unavailable         no member could be reached until the deadline; the message names the endpoints and
//                       the last reason. Also if etcd lost its data, or the lease expired, while a change was
//                       under way. Then, and if the deadline ends a change, it is unknown whether the change
//                       was made.
//   Unauthenticated, PermissionDenied   with the user, the endpoint, and what to do
//   ResourceExhausted   a limit of the store, or of etcd: 1.5 MiB for key and value together, unless etcd was
//                       started with a larger --max-request-bytes
//   FailedPrecondition  the server at the endpoint is not an etcd v3
//
// All items of a queue are one value of etcd, so together they are bounded by etcd's limit. wait() and
// check() see only keys, no queues. A clone has a lease of its own.
//
// Thread-safe. The store starts no threads except one when lease_ttl is set; gRPC has its own threads. A call
// that waits holds a stream to etcd and uses no processor time until an event arrives.
class EtcdStore : public Store {
 public:
  // Connects to etcd within the timeout. Throws Error: the codes above; InvalidArgument for invalid endpoints
  // or options, and for files that cannot be read.
  EtcdStore(const std::vector<std::string>& endpoints, const std::string& prefix,
            EtcdStoreOptions options = {});
  // May take some seconds if etcd does not answer and the store has a lease, or keys of its changes to
  // remove.
  ~EtcdStore() override;

  // The same without exceptions.
  static absl::StatusOr<std::shared_ptr<EtcdStore>> open(const std::vector<std::string>& endpoints,
                                                         const std::string& prefix,
                                                         EtcdStoreOptions options = {});

  std::string description() const override;

 private:
  struct Unopened {};
  EtcdStore(Unopened, const std::vector<std::string>& endpoints, const std::string& prefix,
            const EtcdStoreOptions& options);
  absl::Status start(const EtcdStoreOptions& options);
  std::string full_key(absl::string_view key) const;
  std::string queue_key(absl::string_view queue) const;

  GRADWIRE_STORE_OPERATIONS_;

  // Set once, before the constructor returns. Each uses those above it.
  const std::vector<std::string> endpoints_;
  const std::string prefix_;
  const EtcdStoreOptions options_;  // For clones.
  std::unique_ptr<EtcdClient> client_;
  std::unique_ptr<EtcdLease> lease_;  // Null without a lease_ttl.
  std::unique_ptr<EtcdWriter> writer_;
};

}  // namespace gradwire::store
