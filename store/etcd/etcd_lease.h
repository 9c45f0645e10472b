#pragma once

#include <cstdint>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/mutex.h"
#include "gradwire/store/etcd/etcd_client.h"

namespace gradwire::store {

// The lease of a store's keys. A thread of this object keeps it alive. The destructor revokes it, and etcd
// then deletes the keys. If etcd could not be reached for so long that the lease expired, the keys are
// lost (which is logged), and keys that are written afterwards get a new lease.
//
// Thread-safe. The client and the clock must outlive this object.
class EtcdLease {
 public:
  // `ttl` is a whole number of seconds. `name` is the name of the store, for the log.
  EtcdLease(EtcdClient& client, absl::Duration ttl, std::string name, Clock& clock);
  ~EtcdLease();

  // Returns the lease's id, never 0. Requests a lease from etcd if this object has none, or waits for another
  // call that requests it. Tries for at least a second, even if the deadline is sooner. Errors are those of
  // EtcdClient::call().
  absl::StatusOr<int64_t> id(absl::Time deadline);
  // Notes that etcd does not know this lease any more.
  void on_lost(int64_t id);

 private:
  absl::StatusOr<int64_t> grant(absl::Time deadline);
  void run();
  // Returns false if etcd did not answer, so that the caller must retry soon.
  bool keep_alive(int64_t id);

  EtcdClient& client_;
  const absl::Duration ttl_;
  const std::string name_;
  Clock& clock_;

  Mutex mutex_;
  CondVar wake_;
  int64_t id_ ABSL_GUARDED_BY(mutex_) = 0;  // 0 without a lease.
  // Whether a call is requesting a lease. Other calls must not request a second one.
  bool granting_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Context of the thread's current call, or null.
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::thread thread_;
};

}  // namespace gradwire::store
