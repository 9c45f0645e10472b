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

// Changes keys of etcd, each change exactly once, though etcd may be restarted, or a member lost, at any
// moment.
//
// A call whose answer is lost may have been carried out, and may even be carried out later: etcd says
// Unavailable to calls that it has in its log already. So that it can be repeated nevertheless, each change
// is one transaction that writes two keys, the one that is meant and a *slot*, and that only happens if the
// slot's last change is still the one that the writer knows. A slot belongs to one call at a time. Whatever
// is asked how often, in whichever order: the first that happens changes the slot, and with it all others
// have lost their condition. Who repeats finds the slot changed and knows that it was carried out, and how:
// the slot's value says with which result.
//
// What depends on what the key holds is decided here, with what it held at some revision, and has the further
// condition that its last change is still that one; otherwise it is decided again.
//
// A call that ends without knowing (its deadline came first) leaves its slot for good. Slots are removed with
// this object; what a process that was killed leaves are some keys of a few bytes, or nothing where there is
// a lease.
//
// Thread-safe. Client, lease and clock outlive it.
class EtcdWriter {
 public:
  // `slots`: what the keys of the slots begin with; this writer's own. `lease` may be null.
  EtcdWriter(EtcdClient& client, EtcdLease* lease, std::string slots, Clock& clock);
  ~EtcdWriter();

  struct Change {
    enum Kind { kNone, kPut, kErase };
    Kind kind;
    std::string value;   // To be put.
    std::string note;    // Short; what Outcome says if this is the change that happens.
    absl::Status error;  // Of kNone: what update() returns then.
  };
  struct Outcome {
    // What happened; none: nothing, and this is what the key holds.
    std::optional<std::string> note;
    std::optional<std::string> current;
  };
  // From what the key holds. Runs on the calling thread, several times if others change the key too.
  using Decide = std::function<Change(const std::optional<std::string>& current)>;

  // Whatever the key holds.
  absl::Status put(const std::string& key, absl::string_view value, absl::Time deadline);
  absl::StatusOr<Outcome> update(const std::string& key, const Decide& decide, absl::Time deadline);

 private:
  struct Slot {
    std::string key;
    int64_t mod_revision = 0;
  };
  // Of one call.
  struct Task {
    const std::string& key;
    const Decide* decide;  // Null: `change` is what is to be done, whatever the key holds.
    Change change;
    EtcdValue current;
    Slot slot;
    bool unsure = false;  // Something that was asked may have happened, or may yet.
  };

  absl::StatusOr<Outcome> run(Task& task, absl::Time deadline);
  absl::StatusOr<Outcome> carry_out(Task& task, absl::Time deadline);
  // One transaction. None: it did not happen, and the task knows why.
  absl::StatusOr<std::optional<Outcome>> attempt(Task& task, absl::Time deadline);
  absl::StatusOr<std::optional<Outcome>> learn(Task& task, etcdserverpb::TxnResponse& response);
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
