#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/log/log_record.h"
#include "gradwire/tools/launch/rendezvous/record.h"

namespace gradwire::rendezvous {

// Errors for the user of a node that cannot take part in the job any more.

// The outcome of the job, for a node that was in it.
Outcome outcome_of(const Record& record);
// The job was over before this node joined.
absl::Status too_late(const Record& record);
// The round was in JOINING for too long. Names the nodes that are there, and those that are missing or not
// ready.
absl::Status too_few(const Record& record, absl::Duration waited);
// The store is used by another job.
absl::Status other_job(const Record& record, absl::string_view mine);
absl::Status other_settings(const Record& record, const Settings& mine);
absl::Status rank_taken(const Member& me, const Member& other);

// Describes the wait of a node that has no workers to run: names the nodes that are there, and those that are
// missing. `group_rank` is the node's position among the participants, or -1.
ProgressState describe_wait(const Record& record, int group_rank, absl::Duration last_call);

}  // namespace gradwire::rendezvous
