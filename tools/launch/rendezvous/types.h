#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/tools/launch/options/layout.h"

namespace gradwire::rendezvous {

using Role = tools::RoleCount;
using Node = tools::NodeEntry;

struct Address {
  std::string host;
  int port = 0;
  bool operator==(const Address&) const = default;
};

// What ended a round or the job: a worker's end, or what befell a node.
struct Failure {
  std::string host;
  int rank = -1;  // the worker's; -1: the node itself was lost, left, or could not start
  std::string role;
  int local_rank = -1;
  int64_t pid = 0;
  int exit_code = 0;
  int signal = 0;   // which killed the worker, or 0
  absl::Time time;  // of day
  std::string message;
  bool operator==(const Failure&) const = default;
};

// One line for people: "worker 3 (role trainer, local rank 1, pid 4711) on host7 ended with exit code 1:
// message".
std::string describe(const Failure& failure);

// The id of a job whose nodes were not told one; to it, all ids are the same.
inline constexpr char kNoRunId[] = "none";

// The nodes must agree on these.
struct Settings {
  int min_nodes = 1;
  int max_nodes = 1;
  int max_restarts = 0;
  bool fixed_ranks = false;
  bool operator==(const Settings&) const = default;
};

// What a node needs in order to start its workers of one round. The same on all nodes but for group_rank.
struct RoundInfo {
  int64_t round = 0;
  int group_rank = 0;
  std::vector<Node> nodes;  // by group rank
  int restarts_used = 0;
  int max_restarts = 0;
  std::string run_id;
  std::optional<Address> store;         // the round's own, where each round has one
  std::optional<Failure> ended_before;  // what ended the round before, if it failed
  bool operator==(const RoundInfo&) const = default;
};

// How the job ended for this node. OK: all workers of the last round, on all nodes, ended with 0.
//
//   Aborted             the job failed: `failure` says by what
//   FailedPrecondition  the job was over before this node came; or its node rank is another's
//   InvalidArgument     started with settings other than the job's (both are named); or what the store holds
//                       is no record
//   DeadlineExceeded    too few nodes within join_timeout: names those that were there
//   Unavailable         the store cannot be reached, or has lost the record
//   Cancelled           leave(), and the job goes on without this node
//   ResourceExhausted   more nodes than a record holds
struct Outcome {
  absl::Status status;
  std::optional<Failure> failure;
};

// What the launcher is to do now.
struct RendezvousUpdate {
  enum class Kind {
    // nothing yet
    kWait,
    // serve a store for round `round`, then call store_served(); the round runs when all know of it
    kServeStore,
    // have the workers of round `round` run
    kRun,
    // end the workers of the round, then call ready()
    kStop,
    // end the workers, if there are any; the job is over for this node: `outcome`
    kEnded,
  };
  Kind kind = Kind::kWait;
  // kServeStore, kRun, and kStop: the round that is to be stopped.
  RoundInfo round;
  Outcome outcome;
};

}  // namespace gradwire::rendezvous
