#pragma once

#include <cstddef>
#include <string>

namespace gradwire::rpc {

// What an agent still holds, one count for each of its tables. All zero when nothing is under way and no RRef
// is left, but for what is said to go with time, with a connection or with the agent. A table that another
// process can fill has a bound.
struct AgentTables {
  std::size_t pending_calls = 0;
  std::size_t served_calls = 0;
  // Answers that were given, and that wait for repetitions of their requests (rpc/options.h). They go with
  // time.
  std::size_t kept_answers = 0;
  std::size_t owned_rrefs = 0;
  std::size_t held_forks = 0;
  std::size_t unconfirmed_children = 0;
  // Deletes of references that are remembered, since something sent before them may still come.
  std::size_t remembered_deletes = 0;

  // Bytes of messages that wait for the group's log to tell of a worker.
  std::size_t held_bytes = 0;
  // Connections; those that came in from somebody who has not been admitted; those that this side has
  // numbered.
  std::size_t links = 0;
  std::size_t unadmitted_links = 0;
  std::size_t numbered_links = 0;
  // Requests of idempotent functions that have no answer yet.
  std::size_t open_requests = 0;
  // Calls that run for a caller whose connection broke.
  std::size_t orphaned_calls = 0;
  // Callers of idempotent functions; numbers of their answers, of which some have been dropped. They go with
  // the caller.
  std::size_t repeat_callers = 0;
  std::size_t remembered_answers = 0;
  // Values that are owned, or are being made.
  std::size_t values = 0;
  // References whose message has not left.
  std::size_t unsent_children = 0;
  // Messages about references that wait for an answer, and forks that wait for their owner's.
  std::size_t reference_messages = 0;
  std::size_t unconfirmed_forks = 0;
  // References that their sharer says it never sent. They go when what it sent before has come.
  std::size_t revoked_references = 0;
  // Questions about the dead that others have asked.
  std::size_t fences_asked = 0;
  // Lost workers for whose references no fence has begun, since the group has not agreed on their end.
  std::size_t unfenced_workers = 0;
  // Workers that somebody says are dead, and that are not known here. They go when the log tells of them.
  std::size_t accused_strangers = 0;
  // All members that are known, lost or not; what is remembered of the end of others
  // (rpc/membership/gone_workers.h). They go with the agent.
  std::size_t known_workers = 0;
  std::size_t gone_workers = 0;
  // Members whose silence counts.
  std::size_t watched_workers = 0;
  // Who waits for a worker to join.
  std::size_t waiting_for_workers = 0;

  // All counts together.
  std::size_t total() const;
  // "3 pending_calls, 1 held_forks"; "nothing" when all are zero.
  std::string describe() const;
};

}  // namespace gradwire::rpc
