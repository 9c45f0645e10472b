#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "proto/rpc.pb.h"
#include "rpc/worker.h"
#include "transport/message.h"

namespace gradwire::rpc {

// What came back for a call: the answer's envelope and buffers.
struct Answer {
  proto::Response response;
  std::vector<transport::Buffer> buffers;
};

// A call that waits for its answer.
struct PendingCall {
  Worker to;
  std::string callee;
  absl::Time started;
  uint64_t timer = 0;
  // Where it was sent: the link's number, and the transport's ticket.
  uint64_t link = 0;
  uint64_t ticket = 0;
  // The transport may still read memory of the caller, until it is told to capture.
  bool borrows = false;
  absl::AnyInvocable<void(absl::StatusOr<Answer>)> done;
};

// The calls of one agent that wait for an answer. Whoever takes a call out completes it, so each completes
// once, and then says finished(): until then the call counts as unfinished, though it is no longer in the
// table. Thread-safe; runs nothing.
class PendingCalls {
 public:
  uint64_t next_id();
  void add(uint64_t id, PendingCall call);
  // False when the call was taken before.
  bool set_sent(uint64_t id, uint64_t link, uint64_t ticket);
  void set_timer(uint64_t id, uint64_t timer);
  // Empty when the call is gone: a late or second answer.
  absl::optional<PendingCall> take(uint64_t id);
  // Only if the call went to this worker: answers are accepted from nobody else.
  absl::optional<PendingCall> take_from(uint64_t id, uint64_t incarnation);
  std::vector<PendingCall> take_link(uint64_t link);
  std::vector<PendingCall> take_all();
  // Where a call was sent; {0, 0} when unknown.
  std::pair<uint64_t, uint64_t> sent(uint64_t id) const;
  std::size_t size() const;
  // A call that was taken has been completed.
  void finished();
  // In the table or not yet finished.
  std::size_t unfinished() const;

 private:
  mutable Mutex mutex_;
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::flat_hash_map<uint64_t, PendingCall> calls_ ABSL_GUARDED_BY(mutex_);
  std::size_t unfinished_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace gradwire::rpc
