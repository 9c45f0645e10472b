#pragma once

#include "absl/strings/string_view.h"
#include "gradwire/tools/launch/rendezvous/record.h"

namespace gradwire::rendezvous {

// The steps that a record takes, each as proto/rendezvous.proto says; who takes them when is Rendezvous's.
// They leave `version` alone.

// JOINING(0) with `me` alone.
Record first_record(const Member& me, const Settings& settings, absl::string_view run_id);

const Member* find(const Record& record, absl::string_view id);
// Another member with this fixed rank, or nullptr.
const Member* find_rank(const Record& record, const Member& me);
int count_nodes(const Record& record);

// JOINING and room: as a participant; else to those who wait.
void enter(Record& record, Member member);
// Wherever it is.
void remove(Record& record, absl::string_view id);
// JOINING: those who wait, while there is room.
void let_in_waiting(Record& record);
// RUNNING: somebody waits, there is room, and no participant has ended its work yet.
bool could_grow(const Record& record);

// JOINING: at least min participants, all ready.
bool may_run(const Record& record);
// JOINING -> RUNNING.
void run(Record& record);
// RUNNING -> JOINING of the next round, with those who are participants now, and those who wait. `complete`:
// nobody else is expected.
void begin_next(Record& record, bool complete);
// RUNNING: a failure: another round if there is a restart left, else CLOSED. `complete` as above.
void fail(Record& record, Failure failure, bool complete);
void close_failed(Record& record, Failure failure);
// RUNNING: CLOSED if all participants are done.
void close_if_done(Record& record);

}  // namespace gradwire::rendezvous
