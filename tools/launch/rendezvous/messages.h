#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/tools/launch/rendezvous/record.h"

namespace gradwire::rendezvous {

// What a node that cannot go on tells its user.

// The job's outcome, for a node that was in it.
Outcome outcome_of(const Record& record);
// For one that was not.
absl::Status too_late(const Record& record);
// JOINING for too long: who is there, and who is missing or not ready.
absl::Status too_few(const Record& record, absl::Duration waited);
// Another job meets at this store.
absl::Status other_job(const Record& record, absl::string_view mine);
absl::Status other_settings(const Record& record, const Settings& mine);
absl::Status rank_taken(const Member& me, const Member& other);

}  // namespace gradwire::rendezvous
