#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/tools/launch/rendezvous/beat_watch.h"
#include "gradwire/tools/launch/rendezvous/record.h"
#include "gradwire/tools/launch/rendezvous/round_times.h"
#include "gradwire/tools/launch/rendezvous/round_workers.h"
#include "gradwire/tools/launch/rendezvous/types.h"
#include "gradwire/tools/launch/rendezvous/view.h"

namespace gradwire::rendezvous {

struct Options {
  // Random, new for every start of a launcher.
  std::string node_id;
  Node self;
  Settings settings;
  // With settings.fixed_ranks: below max_nodes.
  std::optional<int> node_rank;
  // Another one than the job's is refused, unless one of the two is kNoRunId.
  std::string run_id;
  // Each round has a store of its own, which the launcher of group rank 0 serves.
  bool round_store = false;
  // This launcher serves the store that the nodes meet in, so once the job is over it goes last.
  bool hosts_store = false;

  absl::Duration join_timeout = absl::Seconds(600);
  absl::Duration last_call_timeout = absl::Seconds(30);
  absl::Duration keep_alive_interval = absl::Seconds(5);
  int keep_alive_max_attempt = 3;

  // How many others each node watches: its successors in the record, in a ring.
  int watched = 8;
  // Added to a time of the driver's clock it gives the time of day.
  absl::Duration to_time_of_day;
};

// InvalidArgument names the option that cannot be.
absl::Status check(const Options& options);

// One node's part in the rendezvous: a pure state machine without threads, clocks, sockets or a store of its
// own. Events go in with the driver's time; what is to be done at the store comes out of wanted(), what the
// launcher is to do out of update(). proto/rendezvous.proto is the protocol.
//
// States: outside; in (participant or waiting, as the record says); ended, for good. Beside it the launcher
// may have the workers of one round, from kServeStore or kRun until ready().
//
// The parts: View (the record as last read), RoundWorkers (what the launcher has and reports), RoundTimes,
// BeatWatch, and the steps that a record takes (transitions.h). Which step is taken when is decided here.
//
// Whatever is wanted follows from the record as last read, so that an answer that was lost costs nothing but
// another read. What the design leaves to choose:
//   - A node that was taken for lost and removed stops its workers at once and then enters again under a new
//     id, also where the number of nodes is fixed: it is the very one that is missing.
//   - A lost node is noticed by every node of the record, waiting ones included, so a job whose participants
//     have all died goes on with those that came later. A node that was paused itself, or cut off from the
//     store, holds that time against nobody.
//   - Nodes with the same fixed rank: the one that came second waits until it has heard the other's beat,
//     which is the error, or the other is lost: a launcher that died and was started again gets its place
//     back.
//   - After a worker's failure nobody is waited for when all nodes of the round are ready again: no last
//     call.
//   - A node that is done is not missed when it goes; nor is a round whose first node is done broken off for
//     one that arrives.
//   - A node that leaves before the first round of an elastic job just goes; later, and where the number is
//     fixed, it closes the job unless min nodes, counting those that wait, are left. The one that serves the
//     store always does: the others are told rather than left without it.
//
// Not thread-safe.
class Rendezvous {
 public:
  // REQUIRES: check(options).ok().
  Rendezvous(Options options, absl::Time now);

  // The driver's task at the store now: the first of these that is set, then it asks again. Each has an event
  // that answers it. When the store did not answer, or the outcome is unknown, no event follows: the driver
  // reads the record again before it asks what is wanted.
  struct Wanted {
    // beat_key(id) to be set, or deleted when there is no value: beaten().
    struct Beat {
      std::string id;
      std::optional<std::string> value;
    };
    std::optional<Beat> beat;
    // Nodes whose beats are to be read: looked().
    std::vector<std::string> look_at;
    // kStateKey to be changed by compare_set, and what that returns: read().
    struct Change {
      std::string expected;
      std::string desired;
    };
    std::optional<Change> change;
    // With nothing else to do the driver waits for another record: read(). At this time, or a little later,
    // it asks again.
    absl::Time wake = absl::InfiniteFuture();
  };
  Wanted wanted(absl::Time now);

  void beaten(absl::Time now);
  // The beats of wanted().look_at, in its order; nullopt for a key that is missing.
  void looked(const std::vector<std::optional<std::string>>& beats, absl::Time now);
  // The record as it was read, or as compare_set gave it back; nullopt: the key is missing.
  void read(std::optional<absl::string_view> bytes, absl::Time now);
  // The store is lost to this node, for this reason: the end.
  void lose_store(absl::Status status);

  // From the launcher; calls that do not fit what it was told last are ignored. The workers that it was told
  // to stop, or that failed, are gone: it may take part in the next round.
  void ready(absl::Time now) {
    if (workers_.ready(update_.kind)) advance(now);
  }
  // The first failure counts. A round that cannot be started has failed as well.
  void workers_failed(const Failure& failure, absl::Time now) {
    if (workers_.failed(failure)) advance(now);
  }
  // All workers of the round have ended with 0.
  void workers_done(absl::Time now) {
    if (workers_.done()) advance(now);
  }
  // REQUIRES: a port.
  void store_served(const Address& address, absl::Time now) {
    if (workers_.store_served(address)) advance(now);
  }
  // `reason`: what the node does, for people: "was stopped by SIGTERM".
  void leave(absl::string_view reason, absl::Time now);

  const RendezvousUpdate& update() const { return update_; }
  // RendezvousUpdate that have ended, and nobody needs this node any more: the driver may stop.
  bool done() const { return done_; }

  // Under which it is, or wants to be, in the record.
  const std::string& id() const { return view_.me().id; }

 private:
  // rendezvous_steps.cc: after every event, moves on and finds out which change is wanted.
  void advance(absl::Time now);
  void advance_removed(absl::Time now);
  void advance_outside(absl::Time now);
  void joining(Record& next, absl::Time now);
  void running(Record& next, absl::Time now);
  void leave_record(Record& next, absl::Time now);
  void remove_lost(Record& next, absl::Time now);
  void run_if_complete(Record& next, absl::Time now) const;
  void propose(Record next);

  void end(Outcome outcome, absl::Time now);
  void linger(absl::Time now);

  const Options options_;
  View view_;
  RoundWorkers workers_;
  RoundTimes times_;
  BeatWatch watch_;

  std::optional<std::string> leave_reason_;
  // The node has asked to be taken out of the record, in order to end so.
  std::optional<absl::Status> parting_;

  uint64_t beats_ = 0;
  absl::Time next_beat_;

  std::optional<Wanted::Change> change_;
  RendezvousUpdate update_;
  bool ended_ = false;
  absl::Time linger_until_ = absl::InfiniteFuture();
  bool beat_deleted_ = false;
  bool done_ = false;
};

}  // namespace gradwire::rendezvous
