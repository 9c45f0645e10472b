#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/collectives/cpu/p2p/channels.h"
#include "gradwire/collectives/cpu/p2p/effects.h"
#include "gradwire/collectives/cpu/p2p/matcher.h"
#include "gradwire/collectives/cpu/p2p/send_table.h"

namespace gradwire::collectives::cpu {

// One rank's end of the protocol of frame.h: its sends and receives, and what other ranks say. No threads,
// clocks or memory of others: events in, effects out. Its owner has a carrier, which brings what lies in the
// outboxes (sends()) to the other ranks, in order.
//
// Each operation that was begun is reported in exactly one effect (kDeliver, kEndReceive, kEndSend). An event
// of a peer that breaks the protocol is returned as InvalidArgument; its rank is then to be lost.
//
// Not thread-safe.
class Endpoint {
 public:
  struct Options {
    int rank = 0;
    int size = 1;
    std::size_t eager_bytes = std::size_t{64} << 10;
    std::size_t max_pending_rts = kMaxPendingRts;
    // The same in all ranks.
    uint64_t eager_window = kEagerWindow;
    // How errors name what the ranks are in: "world", "group".
    std::string whole = "world";
  };
  explicit Endpoint(const Options& options);

  // ---- From this rank.

  // InvalidArgument for a rank that does not exist.
  absl::Status check(int rank) const;
  // OK when a message can be sent now: no end of the channel, of the rank, or of this endpoint.
  absl::Status check_open(int dst, uint64_t channel) const;
  void send(const SendPtr& send, Effects& effects);
  void receive(const ReceivePtr& receive, Effects& effects);
  // End it, unless it has ended.
  void end(const SendPtr& send, absl::Status status, Effects& effects);
  void end(const ReceivePtr& receive, absl::Status status, Effects& effects);
  // Everything in the channel, and all that comes, fails with `reason`. The first reason stays.
  void abort(uint64_t channel, const absl::Status& reason, Effects& effects);
  // As abort(), with Cancelled, and for good: the channel's number is not used again.
  void forget(uint64_t channel, Effects& effects);
  // Everything fails with `reason`, now and later. Nothing more is said to other ranks; the carrier says that
  // this one leaves.
  void close(const absl::Status& reason, Effects& effects);
  // Ends what is late.
  void expire(absl::Time now, Effects& effects);
  // No deadline comes before this time.
  absl::Time next_deadline() const { return next_deadline_; }

  // ---- From the carrier.

  // A frame of another rank, without kHello, kWelcome and kGoodbye. One of a lost rank is ignored.
  absl::Status on_frame(int src, const Frame& frame, Payload payload, Effects& effects);
  // Nothing can be sent to the rank any more. `reason`: what the rank's name is put before, as "has left".
  void fail_sends(int rank, const absl::Status& reason, Effects& effects);
  // Nor does anything come.
  void lose(int rank, const absl::Status& reason, Effects& effects);

  // All of the message of a kBegin frame is here, and no receive has been found for it; see Matcher.
  absl::Status on_came(int src, uint64_t message, Payload payload, Effects& effects);
  // An eager message of `size` bytes has come and gone, and the matcher never held it.
  absl::Status on_passed(int src, uint64_t size, Effects& effects);
  // Whether it waits, or its data is on the way.
  bool contains(const Receive& receive) const { return receives_.contains(receive.id); }

  SendTable& sends() { return sends_; }
  const SendTable& sends() const { return sends_; }
  Channels& channels() { return channels_; }
  const Matcher& matcher() const { return matcher_; }
  // No operation is under way here.
  bool idle() const { return sends_.empty() && receives_.empty(); }

 private:
  // Translates what the matcher wants done, and does what concerns this rank itself.
  void apply(Matcher::Actions actions, Effects& effects);
  void send_to_self(const SendPtr& send, Effects& effects);
  void clear_self(uint64_t id, Effects& effects);
  void on_nack(int from, uint64_t id, absl::StatusCode code, uint64_t size, Effects& effects);
  // Ends everything that is under way in the channel.
  void end(uint64_t channel, const absl::Status& reason, Effects& effects);

  const Options options_;
  absl::Status closed_;
  Channels channels_;
  Matcher matcher_;
  SendTable sends_;
  absl::flat_hash_map<uint64_t, ReceivePtr> receives_;
  uint64_t next_id_ = 1;
  absl::Time next_deadline_ = absl::InfiniteFuture();
};

}  // namespace gradwire::collectives::cpu
