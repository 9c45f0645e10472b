#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/collectives/cpu/p2p/channels.h"
#include "gradwire/collectives/cpu/p2p/effects.h"
#include "gradwire/collectives/cpu/p2p/matcher.h"
#include "gradwire/collectives/cpu/p2p/send_table.h"

namespace gradwire::collectives::cpu {

// One rank's end of the protocol of frame.h: its sends and receives, and the state of its peers. It is a
// state machine without threads, clocks and shared memory: a call is an event, and appends the effects that
// the owner must perform. The owner has a carrier, which brings the entries of the outboxes (sends()) to the
// other ranks, in order.
//
// Each operation that was begun is reported in exactly one effect (kDeliver, kEndReceive or kEndSend). If an
// event of a peer violates the protocol, the call returns InvalidArgument, and the owner must then call
// lose() for that peer.
//
// Not thread-safe.
class Endpoint {
 public:
  struct Options {
    int rank = 0;
    int size = 1;
    std::size_t eager_bytes = std::size_t{64} << 10;
    std::size_t max_pending_rts = kMaxPendingRts;
    // Must be the same in all ranks.
    uint64_t eager_window = kEagerWindow;
    // Name of the set of ranks in error messages: "world" or "group".
    std::string whole = "world";
  };
  explicit Endpoint(const Options& options);

  // ---- Calls of this rank.

  // Returns InvalidArgument if `rank` does not exist.
  absl::Status check(int rank) const;
  // Returns OK if a message can be sent now, otherwise why not: the endpoint is closed, the channel has
  // ended, or the rank is lost.
  absl::Status check_open(int dst, uint64_t channel) const;
  void send(const SendPtr& send, Effects& effects);
  void receive(const ReceivePtr& receive, Effects& effects);
  // Ends the operation with `status`, unless it has ended.
  void end(const SendPtr& send, absl::Status status, Effects& effects);
  void end(const ReceivePtr& receive, absl::Status status, Effects& effects);
  // Aborts the channel: its operations, and later ones, fail with `reason`. The first reason stays.
  void abort(uint64_t channel, const absl::Status& reason, Effects& effects);
  // Like abort() with Cancelled, but permanent: the channel's number must not be used again.
  void forget(uint64_t channel, Effects& effects);
  // Fails all operations, and all later ones, with `reason`. The endpoint queues no more frames for other
  // ranks; the carrier informs them that this rank leaves.
  void close(const absl::Status& reason, Effects& effects);
  // Ends the operations whose deadline has passed.
  void expire(absl::Time now, Effects& effects);
  // Lower bound for the deadlines of all operations.
  absl::Time next_deadline() const { return next_deadline_; }

  // ---- Calls of the carrier.

  // Handles a frame of another rank. kHello, kWelcome and kGoodbye are the carrier's own. Frames of a lost
  // rank are ignored.
  absl::Status on_frame(int src, const Frame& frame, Payload payload, Effects& effects);
  // Fails all sends to the rank, to which nothing can be sent any more. `reason` continues the rank's name in
  // the error, for example "has left".
  void fail_sends(int rank, const absl::Status& reason, Effects& effects);
  // Like fail_sends(), and nothing arrives from the rank any more either.
  void lose(int rank, const absl::Status& reason, Effects& effects);

  // All data of a message that began with kBegin was received before a receive was found for it; see Matcher.
  absl::Status on_buffered(int src, uint64_t message, Payload payload, Effects& effects);
  // An eager message of `size` bytes was received without the matcher; see Matcher.
  absl::Status on_bypassed(int src, uint64_t size, Effects& effects);
  // Whether the receive waits, or its data is awaited.
  bool contains(const Receive& receive) const { return receives_.contains(receive.id); }

  SendTable& sends() { return sends_; }
  const SendTable& sends() const { return sends_; }
  Channels& channels() { return channels_; }
  const Matcher& matcher() const { return matcher_; }
  // Whether no operation is in progress.
  bool idle() const { return sends_.empty() && receives_.empty(); }

 private:
  // Translates the matcher's actions into effects. Performs at once the actions that concern messages of this
  // rank to itself.
  void apply(Matcher::Actions actions, Effects& effects);
  void send_to_self(const SendPtr& send, Effects& effects);
  void cts_to_self(uint64_t id, Effects& effects);
  void on_nack(int from, uint64_t id, absl::StatusCode code, uint64_t size, Effects& effects);
  // Ends all operations of the channel.
  void end(uint64_t channel, const absl::Status& reason, Effects& effects);

  const Options options_;
  absl::Status closed_;
  Channels channels_;
  Matcher matcher_;
  SendTable sends_;
  HashMap<uint64_t, ReceivePtr> receives_;
  uint64_t next_id_ = 1;
  absl::Time next_deadline_ = absl::InfiniteFuture();
};

}  // namespace gradwire::collectives::cpu
