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

// The lease on which a store's keys hang, kept alive by a thread of its own, and revoked when this object
// goes: etcd deletes the keys then. If etcd could not be reached for so long that the lease ran out, its keys
// are gone (a line in the log says so), and what is written afterwards hangs on a new one.
//
// Thread-safe. The client and the clock outlive it.
class EtcdLease {
 public:
  // `ttl` is a whole number of seconds. `name`: whose lease, for the log.
  EtcdLease(EtcdClient& client, absl::Duration ttl, std::string name, Clock& clock);
  ~EtcdLease();

  // Asks etcd for a lease if there is none, or waits for another call that asks. Never 0. However short, the
  // deadline leaves a second. Errors are EtcdClient::call()'s.
  absl::StatusOr<int64_t> id(absl::Time deadline);
  // etcd said that it knows no such lease.
  void lost(int64_t id);

 private:
  absl::StatusOr<int64_t> grant(absl::Time deadline);
  void run();
  // False: etcd did not answer, so that it is to be asked again soon.
  bool keep_alive(int64_t id);

  EtcdClient& client_;
  const absl::Duration ttl_;
  const std::string name_;
  Clock& clock_;

  Mutex mutex_;
  CondVar wake_;
  int64_t id_ ABSL_GUARDED_BY(mutex_) = 0;  // 0: none.
  // A call asks for a lease, so that no other gets a second one.
  bool granting_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // The thread's call under way.
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::thread thread_;
};

}  // namespace gradwire::store
