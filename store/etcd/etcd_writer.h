#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/mutex.h"
#include "gradwire/store/etcd/etcd_client.h"
#include "gradwire/store/etcd/etcd_lease.h"
#include "gradwire/store/etcd/etcd_reader.h"

namespace gradwire::store {

// Changes keys of etcd, each change exactly once, even if etcd is restarted, or a member is lost, at any
// moment.
//
// The problem: a call whose answer is lost may have been executed, and may even be executed later, because
// etcd answers Unavailable also to calls that are already in its log. The solution, which makes repeating
// safe: each change is one transaction that writes two keys, the key itself and a *slot*, on the condition
// that the slot's last change is the one that the writer knows. A slot belongs to one call at a time. However
// often the transaction is sent, and in whatever order: the first one that is executed changes the slot, so
// that the condition of all others fails. A repeated call finds the slot changed, knows that the change was
// made, and reads the result from the slot's value.
//
// A change that depends on the key's value is decided in this process, from the value at some revision. Its
// transaction has the further condition that the key's last change is at that revision; otherwise it is
// decided again.
//
// If a call ends without knowing its outcome (its deadline passed), its slot is never reused. The destructor
// removes all slots. A process that is killed leaves some keys of a few bytes, or none with a lease.
//
// Thread-safe. Client, lease and clock must outlive this object.
class EtcdWriter {
 public:
  // `slots` is the prefix of the slots' keys; no other writer may have the same. `lease` may be null.
  EtcdWriter(EtcdClient& client, EtcdLease* lease, std::string slots, Clock& clock);
  ~EtcdWriter();

  struct Change {
    enum Kind { kNone, kPut, kErase };
    Kind kind;
    std::string value;   // The new value, for kPut.
    std::string note;    // Short text that Outcome returns if this change is made.
    absl::Status error;  // For kNone: the error that update() returns.
  };
  struct Outcome {
    // The note of the change that was made. If nullopt, no change was made, and `current` is the key's value.
    std::optional<std::string> note;
    std::optional<std::string> current;
  };
  // Decides the change from the key's value. Runs on the calling thread, several times if other processes
  // change the key too.
  using Decide = std::function<Change(const std::optional<std::string>& current)>;

  // Sets the key, whatever its value is.
  absl::Status put(const std::string& key, absl::string_view value, absl::Time deadline);
  // Makes the change that `decide` returns.
  absl::StatusOr<Outcome> update(const std::string& key, const Decide& decide, absl::Time deadline);

 private:
  struct Slot {
    std::string key;
    int64_t mod_revision = 0;
  };
  // State of one call.
  struct Task {
    const std::string& key;
    const Decide* decide;  // Null if `change` does not depend on the key's value.
    Change change;
    EtcdValue current;
    Slot slot;
    bool unsure = false;  // A transaction of this call may have happened, or may still happen.
  };

  absl::StatusOr<Outcome> run(Task& task, absl::Time deadline);
  absl::StatusOr<Outcome> execute(Task& task, absl::Time deadline);
  // Sends one transaction. Returns nullopt if its condition failed; the task then has the new revisions.
  absl::StatusOr<std::optional<Outcome>> attempt(Task& task, absl::Time deadline);
  // Learns from the answer of a transaction whose condition failed what has happened. Returns nullopt to try
  // again.
  absl::StatusOr<std::optional<Outcome>> analyze_failure(Task& task, etcdserverpb::TxnResponse& response);
  etcdserverpb::TxnRequest make_request(const Task& task, int64_t lease) const;

  EtcdClient& client_;
  EtcdLease* const lease_;
  const std::string slots_;
  Clock& clock_;

  Mutex mutex_;
  std::vector<Slot> free_ ABSL_GUARDED_BY(mutex_);
  int64_t next_slot_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace gradwire::store
