#pragma once

#include <optional>

#include "gradwire/tools/launch/rendezvous/record.h"
#include "gradwire/tools/launch/rendezvous/types.h"
#include "gradwire/tools/launch/rendezvous/view.h"

namespace gradwire::rendezvous {

// This node's workers of one round: whether the launcher may have workers, what it must do with them, and
// what it has reported about them. Not thread-safe.
class RoundWorkers {
 public:
  explicit RoundWorkers(RoundStore store) : prepares_store_(store != RoundStore::kReady) {}

  // From this call until ready() the launcher may have workers of the round that runs according to the
  // record.
  void engage(const View& view);
  bool engaged() const { return engaged_; }
  // The round of the last engage(); -1 before.
  int64_t round() const { return info_.round; }

  // Reports of the launcher; see Rendezvous. They return whether the report fits the launcher's last task
  // (`last_kind`).
  bool ready(RendezvousUpdate::Kind last_kind);
  bool failed(const Failure& failure);
  bool done();
  bool store_ready(const Address& address);
  void clear_reports();
  // The first failure of a worker.
  const std::optional<Failure>& failure() const { return failure_; }

  // Writes the reports about the round into a RUNNING record.
  void report(Record& next, int group_rank) const;
  // Updates the launcher's task.
  void update(RendezvousUpdate& update, const View& view);

 private:
  // Whether group rank 0 prepares the store before the workers start.
  const bool prepares_store_;
  bool engaged_ = false;
  RoundInfo info_{.round = -1};
  // Reports that are not in the record yet.
  std::optional<Failure> failure_;
  bool done_ = false;
  std::optional<Address> served_;
};

}  // namespace gradwire::rendezvous
