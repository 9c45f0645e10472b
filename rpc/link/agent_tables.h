#pragma once

#include <cstddef>
#include <string>

#include "absl/functional/function_ref.h"

namespace gradwire::rpc {

// Number of entries in each table of an agent. All counts are zero when no call or message is in progress and
// no RRef is left. Exceptions are the counts whose comment names when they become zero: after some time, with
// a connection, or with the agent. Every table that another process can fill has a bound.
struct AgentTables {
  std::size_t pending_calls = 0;
  std::size_t served_calls = 0;
  // Requests whose memory is held: those of the served calls and, until their answers are sent, of calls that
  // have ended.
  std::size_t held_requests = 0;
  // Answers that are kept for repetitions of their requests (rpc/core/options.h). They expire after a time.
  std::size_t kept_answers = 0;
  std::size_t owned_rrefs = 0;
  std::size_t held_forks = 0;
  std::size_t unconfirmed_children = 0;
  // Deleted forks that are remembered, because a message that was sent before the delete may still arrive.
  std::size_t remembered_deletes = 0;

  // Bytes of messages that are held until the group's log names a worker.
  std::size_t held_bytes = 0;
  // Messages of which only parts have arrived.
  std::size_t parted_messages = 0;
  // All connections.
  std::size_t links = 0;
  // Incoming connections whose Hello has not been admitted, and those of observers.
  std::size_t unadmitted_links = 0;
  // Connections of observers (proto/inspect.proto).
  std::size_t observers = 0;
  // Connections to which this side has given a number.
  std::size_t numbered_links = 0;
  // Requests to idempotent functions that have no answer yet.
  std::size_t open_requests = 0;
  // Calls that are running for a caller whose connection broke.
  std::size_t orphaned_calls = 0;
  // Callers of idempotent functions. An entry is removed with its caller.
  std::size_t repeat_callers = 0;
  // Callers with calls or messages in flight, and connections whose peers have too many unread answers
  // (CallerLimits).
  std::size_t counted_callers = 0;
  // Request ids of those callers' answers, including answers that have been dropped. They are removed with
  // the caller.
  std::size_t remembered_answers = 0;
  // Values that this agent owns, or is creating.
  std::size_t values = 0;
  // Waits for values that this agent is creating, or that are unknown to it.
  std::size_t waits_for_values = 0;
  // References whose message has not been sent yet.
  std::size_t unsent_children = 0;
  // Messages about references that have no answer yet.
  std::size_t reference_messages = 0;
  // Forks that their owner has not confirmed yet.
  std::size_t unconfirmed_forks = 0;
  // References that their sharer has revoked (ForkRevoke). An entry is removed when every message that the
  // sharer sent before has arrived.
  std::size_t revoked_references = 0;
  // Fences of other workers that this agent has not answered yet.
  std::size_t fences_asked = 0;
  // Lost workers for whose references no fence has begun, because the group has not agreed that they are
  // dead.
  std::size_t unfenced_workers = 0;
  // Incarnations that another worker says are dead, and that this agent does not know. An entry is removed
  // when the group's log names it.
  std::size_t accused_strangers = 0;
  // Members that this agent knows, live or lost. They are kept until the agent ends.
  std::size_t known_workers = 0;
  // Lost workers of which only the incarnation is remembered (rpc/membership/gone_workers.h). They are kept
  // until the agent ends.
  std::size_t gone_workers = 0;
  // Members that the failure detector watches.
  std::size_t watched_workers = 0;
  // Messages with tensors in the memory of this agent's devices whose receivers may still read them.
  std::size_t open_transfers = 0;
  // Messages with tensors in the memory of other processes that were neither read nor dropped.
  std::size_t arrived_transfers = 0;
  // Reclaimed transfers whose messages may still arrive. An entry is removed when every message that the
  // sender sent before has arrived.
  std::size_t refused_transfers = 0;
  // Transfers that were read or dropped, and whose sender has not confirmed that it knows this.
  std::size_t unreported_transfers = 0;
  // Probes of the channel "ipc" that have no answer yet.
  std::size_t sharing_probes = 0;
  // Threads and calls that wait for a worker to join.
  std::size_t waiting_for_workers = 0;
  // Messages, and values without references, that wait for a device.
  std::size_t device_waits = 0;

  // Calls `visit` with the name and the value of each count.
  void for_each(absl::FunctionRef<void(const char* name, std::size_t count)> visit) const;
  // The sum of all counts.
  std::size_t total() const;
  // The number and the name of each count.
  void each(absl::FunctionRef<void(const char* name, std::size_t count)> visit) const;
  // The counts that are not zero, such as "3 pending_calls, 1 held_forks"; "nothing" when all are zero.
  std::string describe() const;
};

}  // namespace gradwire::rpc
