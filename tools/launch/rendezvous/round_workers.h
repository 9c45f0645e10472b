#pragma once

#include <optional>

#include "gradwire/tools/launch/rendezvous/record.h"
#include "gradwire/tools/launch/rendezvous/types.h"
#include "gradwire/tools/launch/rendezvous/view.h"

namespace gradwire::rendezvous {

// This node's workers of one round: whether the launcher may have any, what it is to do with them, and what
// it has reported of them. Not thread-safe.
class RoundWorkers {
 public:
  // `round_store`: each round has a store of its own, which the launcher of group rank 0 serves.
  explicit RoundWorkers(bool round_store) : round_store_(round_store) {}

  // From here until ready() the launcher may have workers of the round that the record says runs.
  void engage(const View& view);
  bool engaged() const { return engaged_; }
  // The round of the last engage(); -1 before.
  int64_t round() const { return info_.round; }

  // Reports of the launcher, as Rendezvous's. They return whether they fit what it was told last, which is
  // `told`.
  bool ready(RendezvousUpdate::Kind told);
  bool failed(const Failure& failure);
  bool done();
  bool store_served(const Address& address);
  void forget_reports();
  // The first failure of a worker.
  const std::optional<Failure>& failure() const { return failure_; }

  // RUNNING: writes the reports about the round into the record.
  void report(Record& next, int group_rank) const;
  // Changes what the launcher is to do with the workers.
  void update(RendezvousUpdate& update, const View& view);

 private:
  const bool round_store_;
  bool engaged_ = false;
  RoundInfo info_{.round = -1};
  // Reported, and not in the record yet.
  std::optional<Failure> failure_;
  bool done_ = false;
  std::optional<Address> served_;
};

}  // namespace gradwire::rendezvous
