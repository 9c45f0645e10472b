#pragma once

#include "absl/strings/string_view.h"
#include "gradwire/tools/launch/rendezvous/record.h"

namespace gradwire::rendezvous {

// The transitions of a record, as described in proto/rendezvous.proto. Rendezvous decides which node makes
// them, and when. They do not change `version`. The phases in which a transition is allowed are given in
// capitals.

// Returns a new record: JOINING, round 0, with only `me`.
Record first_record(const Member& me, const Settings& settings, absl::string_view run_id);

// Returns the member with this id, or nullptr.
const Member* find(const Record& record, absl::string_view id);
// Returns another member with the fixed rank of `me`, or nullptr.
const Member* find_rank(const Record& record, const Member& me);
int count_nodes(const Record& record);

// Adds a member: as a participant if JOINING and there is room, else as waiting.
void enter(Record& record, Member member);
// Removes a participant or waiting member.
void remove(Record& record, absl::string_view id);
// JOINING: makes waiting members participants while there is room.
void admit_waiting(Record& record);
// RUNNING: whether a member waits, there is room, and no participant is done yet.
bool could_grow(const Record& record);

// JOINING: whether there are at least min participants and all are ready.
bool may_run(const Record& record);
// JOINING -> RUNNING.
void run(Record& record);
// RUNNING -> JOINING of the next round, with the current participants and the waiting members. `complete`: no
// other node is expected, so there is no last call.
void begin_next(Record& record, bool complete);
// RUNNING: handles a failure. Begins the next round if a restart is left, else closes the job. `complete` as
// above.
void fail(Record& record, Failure failure, bool complete);
// Any phase -> CLOSED, with a failure.
void close_failed(Record& record, Failure failure);
// RUNNING -> CLOSED if all participants are done.
void close_if_done(Record& record);

}  // namespace gradwire::rendezvous
