#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gradwire/store/etcd/etcd_options.h"
#include "gradwire/store/store.h"

namespace gradwire::store {

class EtcdClient;
class EtcdLease;
class EtcdWriter;

// A store in an etcd v3 cluster, over etcd's own gRPC API: for jobs that must survive the loss of any host,
// and for those that have an etcd anyway. A key K is etcd's key `prefix`/K; jobs at one etcd are kept apart
// by their prefixes.
//
// The endpoints are the cluster's members, or some of them: when one is gone, or cut off from the others, the
// next is asked. Calls are repeated until their deadline, over restarts of etcd too, and every change is made
// exactly once (store/etcd/etcd_writer.h says how); waits and watches go on where they were. Calls fail with:
//   Unavailable         no member could be reached until the deadline; with the endpoints and the last
//                       reason. Also when a change was under way and etcd has lost its data, or the lease ran
//                       out, before it could be asked again: then it is open whether it was made. So it is
//                       when the deadline ends a change.
//   Unauthenticated, PermissionDenied   with the user, the endpoint, and what to do
//   ResourceExhausted   besides the limits of a store those of etcd: 1.5 MiB for key and value unless it was
//                       started with a larger --max-request-bytes
//   FailedPrecondition  what answers is no etcd v3
//
// Thread-safe. No threads of its own, but for one where there is a lease_ttl; gRPC has its own. A call that
// waits has a stream to etcd, and no processor time until something happens.
class EtcdStore : public Store {
 public:
  // Reaches etcd within the timeout, or throws Error: as above; InvalidArgument for endpoints and options
  // that cannot be right, and files that cannot be read.
  EtcdStore(const std::vector<std::string>& endpoints, const std::string& prefix,
            EtcdStoreOptions options = {});
  // May take some seconds if there is a lease, or there are traces of changes to remove, and etcd does not
  // answer.
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

  GRADWIRE_STORE_OPERATIONS_;

  // Set once, before the constructor returns. In the order in which they need one another.
  const std::vector<std::string> endpoints_;
  const std::string prefix_;
  std::unique_ptr<EtcdClient> client_;
  std::unique_ptr<EtcdLease> lease_;  // Null: none.
  std::unique_ptr<EtcdWriter> writer_;
};

}  // namespace gradwire::store
