#pragma once

#include <vector>

#include "gradwire/tools/inspect/analysis/finding.h"
#include "gradwire/tools/inspect/analysis/job_view.h"
#include "gradwire/tools/inspect/analysis/rates.h"
#include "gradwire/tools/inspect/view/table.h"

namespace gradwire::inspect {

// The tables of a job, for people. Pure.

// One row for each worker: standing, calls, traffic, memory.
Table workers_table(const JobView& job, const Rates& rates);
// One row for each connection between two workers, as one end reports it.
Table links_table(const JobView& job, const Rates& rates);
// The calls in progress, at their callers and their callees; the oldest first.
Table calls_table(const JobView& job);
// The callees with the most calls in progress, over all workers.
Table functions_table(const JobView& job);
// RRefs by owner, type and holder.
Table rrefs_table(const JobView& job);
// Contexts and passes.
Table passes_table(const JobView& job);
// The process groups with their last operations.
Table groups_table(const JobView& job);
// One row for each finding, and one for each of its details.
Table findings_table(const std::vector<Finding>& findings);

}  // namespace gradwire::inspect
