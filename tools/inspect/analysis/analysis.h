#pragma once

#include <vector>

#include "gradwire/tools/inspect/analysis/finding.h"
#include "gradwire/tools/inspect/analysis/job_view.h"
#include "gradwire/tools/inspect/analysis/wait_graph.h"

namespace gradwire::inspect {

// Finds the problems of a job. The most serious ones come first: the order is that of Finding::Kind, then by
// age. Pure: the same view gives the same findings.
std::vector<Finding> analyze(const JobView& job, const Thresholds& thresholds);

// ---- The parts of analyze(). Each returns its findings in any order.

// Cycles of calls and passes that wait for one another, and chains that came back to one of their workers.
std::vector<Finding> find_deadlocks(const JobView& job, const WaitGraph& graph, const Thresholds& thresholds);
// Calls in progress that take long, one finding for each call at the end of a chain, and queues for threads.
std::vector<Finding> find_slow_calls(const JobView& job, const WaitGraph& graph,
                                     const Thresholds& thresholds);
// Serial objects for which many calls wait.
std::vector<Finding> find_hot_objects(const JobView& job, const WaitGraph& graph,
                                      const Thresholds& thresholds);
// Backward passes in the fast mode that wait for gradients which no worker sends.
std::vector<Finding> find_unused_results(const JobView& job, const Thresholds& thresholds);
// Stores that answer slowly.
std::vector<Finding> find_slow_stores(const JobView& job, const Thresholds& thresholds);
// Wall clocks that differ from the others.
std::vector<Finding> find_wrong_clocks(const JobView& job, const Thresholds& thresholds);
// Workers that do not answer, and workers that died.
std::vector<Finding> find_workers(const JobView& job, const Thresholds& thresholds);
// Ranks that are late at a collective.
std::vector<Finding> find_late_ranks(const JobView& job, const Thresholds& thresholds);
// Full flow windows, connections over tcp between workers that could share memory, and shared memory without
// room.
std::vector<Finding> find_links(const JobView& job, const Thresholds& thresholds);
// RRefs that are many and old, or whose holder is gone.
std::vector<Finding> find_leaks(const JobView& job, const Thresholds& thresholds);

}  // namespace gradwire::inspect
