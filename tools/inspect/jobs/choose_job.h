#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/tools/inspect/input/job_reader.h"
#include "gradwire/tools/running_jobs/job_folder.h"

namespace gradwire::inspect {

// The jobs of this user on this host, by the environment of this process (tools/running_jobs).
tools::RunningJobs jobs_of_user();
// Whether the environment names the store of a job (MASTER_PORT).
bool job_of_environment();

// Completes the place of the job, if it does not name its store: the job of the environment; otherwise the
// one with the id `place.job`; otherwise the only job of the user. Sets its store in `place`, and its
// credentials if `place` has none. Changes nothing if `place` names a store.
//
// InvalidArgument, with the remedy, if there is no such job, or if several fit. Several launchers of one job
// count as one.
absl::Status choose_job(const tools::RunningJobs& jobs, bool in_environment, JobPlace& place);

// The jobs as a table, oldest first, then what is wrong with the files of others.
std::string list_text(const tools::RunningJobs& jobs, absl::Time now);

}  // namespace gradwire::inspect
