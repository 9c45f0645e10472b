#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/base/log/log_record.h"
#include "gradwire/tools/launch/options/layout.h"

namespace gradwire::rendezvous {

using Role = tools::RoleCount;
using Node = tools::NodeEntry;

struct Address {
  std::string host;
  int port = 0;
  bool operator==(const Address&) const = default;
};

// The failure that ended a round or the job: of a worker, or of a whole node.
struct Failure {
  std::string host;
  int rank = -1;  // Rank of the worker; -1 if the node was lost, left, or could not start.
  std::string role;
  int local_rank = -1;
  int64_t pid = 0;
  int exit_code = 0;
  int signal = 0;   // Signal that killed the worker, or 0.
  absl::Time time;  // Time of day.
  std::string message;
  bool operator==(const Failure&) const = default;
};

// Describes a failure in one line for messages: "worker 3 (role trainer, local rank 1, pid 4711) on host7
// ended with exit code 1: message".
std::string describe(const Failure& failure);

// The id of a job whose nodes were given no id. It matches every id.
inline constexpr char kNoRunId[] = "none";

// Settings that must be the same on all nodes.
struct Settings {
  int min_nodes = 1;
  int max_nodes = 1;
  int max_restarts = 0;
  bool fixed_ranks = false;
  bool operator==(const Settings&) const = default;
};

// The information that a node needs to start its workers of one round. The same on all nodes except for
// group_rank.
struct RoundInfo {
  int64_t round = 0;
  int group_rank = 0;
  std::vector<Node> nodes;  // In the order of group ranks.
  int restarts_used = 0;
  int max_restarts = 0;
  std::string run_id;
  std::optional<Address> store;         // The workers' store; none with RoundStore::kReady.
  std::optional<Failure> ended_before;  // Why the previous round failed, if it did.
  bool operator==(const RoundInfo&) const = default;
};

// How the job ended for this node. OK: all workers of the last round, on all nodes, ended with 0. Errors:
//
//   Aborted             the job failed because of `failure`
//   FailedPrecondition  the job was over before this node joined, or another node has its node rank
//   InvalidArgument     the node was started with other settings than the job (both are named), or the record
//                       in the store is malformed
//   DeadlineExceeded    too few nodes joined within join_timeout; names those that did
//   Unavailable         the store cannot be reached, or has lost the record
//   Cancelled           leave() was called, and the job continues without this node
//   ResourceExhausted   the record has too many nodes
struct Outcome {
  absl::Status status;
  std::optional<Failure> failure;
};

// How the store that the workers of a round use comes to be.
enum class RoundStore {
  kReady,     // Nothing is done before a round.
  kPrepared,  // All rounds use one store. The launcher of group rank 0 prepares it before each round.
  kServed,    // Each round has a store of its own, which the launcher of group rank 0 serves.
};

// The current task of the launcher.
struct RendezvousUpdate {
  enum class Kind {
    // Wait.
    kWait,
    // Prepare the workers' store for round `round`, then call store_ready(). The round runs when all nodes
    // know the address.
    kPrepareStore,
    // Run the workers of round `round`.
    kRun,
    // End the workers of the round, then call ready().
    kStop,
    // End the workers, if any. The job is over for this node, with `outcome`.
    kEnded,
  };
  Kind kind = Kind::kWait;
  // For kWait: describes the wait, for a report. Without text while the node does not know the record.
  ProgressState wait;
  // For kPrepareStore, kRun and kStop: the round.
  RoundInfo round;
  Outcome outcome;
};

}  // namespace gradwire::rendezvous
