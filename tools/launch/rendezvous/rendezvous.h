#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/tools/launch/rendezvous/beat_watch.h"
#include "gradwire/tools/launch/rendezvous/record.h"
#include "gradwire/tools/launch/rendezvous/types.h"
#include "gradwire/tools/launch/rendezvous/view.h"

namespace gradwire::rendezvous {

// Measures how long the nodes of a round have been joining, by this node's clock. Not thread-safe.
class RoundTimes {
 public:
  RoundTimes(absl::Duration join_timeout, absl::Duration last_call_timeout)
      : join_timeout_(join_timeout), last_call_timeout_(last_call_timeout) {}

  // Updates the times from the current record.
  void follow(const Record& record, bool takes_part, absl::Time now) {
    const bool same_round = std::exchange(round_, record.round) == record.round;
    const bool joining = record.phase == Phase::kJoining;
    const bool enough = static_cast<int>(record.participants.size()) >= record.settings.min_nodes;
    follow(joining && takes_part, same_round, now, joining_since_);
    follow(joining && enough, same_round, now, enough_since_);
  }

  // Whether this node has been a participant of the joining round for join_timeout.
  bool overdue(absl::Time now) const { return joining_since_ && now >= *joining_since_ + join_timeout_; }
  // Whether the last call is over. It begins when there are min_nodes participants.
  bool last_call_over(absl::Time now) const {
    return last_call_timeout_ <= absl::ZeroDuration() ||
           (enough_since_ && now >= *enough_since_ + last_call_timeout_);
  }
  // The next time at which overdue() or last_call_over() changes. After the last call the round waits for
  // nodes to be ready, not for a time.
  absl::Time next(absl::Time now) const {
    absl::Time next = joining_since_ ? *joining_since_ + join_timeout_ : absl::InfiniteFuture();
    if (enough_since_ && !last_call_over(now)) next = std::min(next, *enough_since_ + last_call_timeout_);
    return next;
  }

 private:
  static void follow(bool counts, bool same_round, absl::Time now, std::optional<absl::Time>& since) {
    if (!counts || !same_round) since.reset();
    if (counts && !since) since = now;
  }

  const absl::Duration join_timeout_;
  const absl::Duration last_call_timeout_;
  int64_t round_ = -1;
  std::optional<absl::Time> joining_since_;
  std::optional<absl::Time> enough_since_;
};

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

// Options of one node.
struct Options {
  // A random id, new for every start of a launcher.
  std::string node_id;
  Node self;
  Settings settings;
  // Set if and only if settings.fixed_ranks; less than max_nodes.
  std::optional<int> node_rank;
  // The id of the job. A node with another id than the job's is refused, unless one of the two is kNoRunId.
  std::string run_id;
  RoundStore round_store = RoundStore::kReady;
  // Whether this launcher serves the store of the rendezvous. It then ends last when the job is over.
  bool hosts_store = false;

  absl::Duration join_timeout = absl::Seconds(600);
  absl::Duration last_call_timeout = absl::Seconds(30);
  absl::Duration keep_alive_interval = absl::Seconds(5);
  int keep_alive_max_attempt = 3;

  // How many other nodes each node watches: its successors in the record, as a ring.
  int watched = 8;
  // The difference between the time of day and the driver's clock.
  absl::Duration to_time_of_day;
};

// Checks options. InvalidArgument, which names the invalid option.
absl::Status check(const Options& options);

// The rendezvous of one node: a pure state machine without threads, clocks, sockets or a store. Its inputs
// are events, with the driver's time. Its outputs are wanted(), the next operation on the store, and
// update(), the launcher's task. proto/rendezvous.proto describes the protocol.
//
// States: outside the record; in the record (as participant or waiting); ended. Independently of these, the
// launcher may have the workers of one round, from kPrepareStore or kRun until ready().
//
// The parts: View (the record as last read), RoundWorkers (the launcher's workers and its reports),
// RoundTimes, BeatWatch, and the transitions of a record (transitions.h). This class decides which transition
// is made, and when.
//
// wanted() follows from the record as last read, so if an answer is lost, reading the record again is enough.
// Rules that the protocol leaves open:
//   - A node that was removed as lost stops its workers at once, and then enters again under a new id, also
//     in a job with a fixed number of nodes: it is the node that is missing.
//   - Every node in the record, also a waiting one, detects lost nodes. So if all participants have died, the
//     job continues with the waiting nodes. Time in which a node was itself paused, or cut off from the
//     store, does not count.
//   - Two nodes with the same fixed rank: the second one waits. If the first one's beat moves, the second one
//     ends with an error. If the first one is lost, the second one gets the rank: so a launcher that died and
//     was restarted gets its rank back.
//   - After a failure of a worker there is no last call: the next round begins as soon as all nodes of the
//     failed one are ready.
//   - A node that is done does not count as lost when it ends. A round in which a node is done is not
//     interrupted for a new node.
//   - A node that leaves before the first round of an elastic job is only removed. If it leaves later, or if
//     the number of nodes is fixed, it closes the job, unless min nodes, including waiting ones, are left.
//     The node that serves the store always closes the job, so that the others learn the reason before the
//     store is gone.
//
// Not thread-safe.
class Rendezvous {
 public:
  // REQUIRES: check(options).ok().
  Rendezvous(Options options, absl::Time now);

  // The next operation of the driver on the store: the first of these that is set. The driver reports the
  // result with the event named here and calls wanted() again. If the store did not answer, or the outcome is
  // unknown, it reports no event, but reads the record before it calls wanted() again.
  struct Wanted {
    // Set beat_key(id), or delete it if there is no value. Event: on_beat_written().
    struct Beat {
      std::string id;
      std::optional<std::string> value;
    };
    std::optional<Beat> beat;
    // Read the beats of these nodes. Event: on_beats_read().
    std::vector<std::string> beats_to_read;
    // Change kStateKey by compare_set, and report the value that it returns. Event: read().
    struct Change {
      std::string expected;
      std::string desired;
    };
    std::optional<Change> change;
    // If nothing else is set, wait for a change of the record. Event: read(). At this time, or a little
    // later, call wanted() again.
    absl::Time wake = absl::InfiniteFuture();
  };
  Wanted wanted(absl::Time now);

  void on_beat_written(absl::Time now);
  // The beats of wanted().beats_to_read, in that order; nullopt for a missing key.
  void on_beats_read(const std::vector<std::optional<std::string>>& beats, absl::Time now);
  // The record as it was read, or as compare_set returned it; nullopt if the key is missing.
  void read(std::optional<absl::string_view> bytes, absl::Time now);
  // This node has lost the store, for this reason. Ends the node.
  void on_store_lost(absl::Status status);

  // Reports of the launcher. A report that does not fit the last update() is ignored. ready(): the workers
  // that had to stop, or that failed, have ended; the node may take part in the next round.
  void ready(absl::Time now) {
    if (workers_.ready(update_.kind)) advance(now);
  }
  // Only the first failure counts. Also used if the launcher cannot start the round.
  void workers_failed(const Failure& failure, absl::Time now) {
    if (workers_.failed(failure)) advance(now);
  }
  // All workers of the round have ended with 0.
  void workers_done(absl::Time now) {
    if (workers_.done()) advance(now);
  }
  // REQUIRES: `address` has a port.
  void store_ready(const Address& address, absl::Time now) {
    if (workers_.store_ready(address)) advance(now);
  }
  // `reason` continues "node X ...", for messages: "was stopped by SIGTERM".
  void leave(absl::string_view reason, absl::Time now);

  const RendezvousUpdate& update() const { return update_; }
  // Whether the node has ended and no other node needs it any more: the driver may stop.
  bool done() const { return done_; }

  // The id of this node in the record.
  const std::string& id() const { return view_.me().id; }

 private:
  // Called after every event: advances the state and decides which change to propose.
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
  // Set when the node has proposed to be removed from the record. The status with which it then ends.
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
