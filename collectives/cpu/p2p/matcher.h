#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/collectives/cpu/p2p/channels.h"
#include "gradwire/collectives/cpu/p2p/effects.h"
#include "gradwire/collectives/cpu/p2p/frame.h"

namespace gradwire::collectives::cpu {

// Matches the messages that arrive at one rank with its receives. It is a state machine without threads,
// sockets and clocks: a call is an event, and appends the actions that the owner must perform. If an event of
// a peer violates the protocol, the call returns InvalidArgument, and nothing has changed.
//
// States of a receive: posted -> matched, which ends it if the message is eager; for an announced message
// posted -> CTS sent -> done. States of a message: waiting -> matched; for an announced message waiting ->
// CTS sent -> done.
//
// A receive takes the oldest message with its channel, tag and source. A message goes to the oldest receive
// that accepts it. Each receive is reported in exactly one action (kDeliver or kFail), unless it was
// cancelled.
//
// Not thread-safe.
class Matcher {
 public:
  struct Action {
    enum class Kind {
      // Copy `payload`, which came from `src` and has the receive's size, into the receive.
      kDeliver,
      // The receive failed with `status`.
      kFail,
      // Send CTS: `src` may send the data of its `message`, which goes into `receive`.
      kCts,
      // Send NACK: `src` must not send its `message`. It carries the code of `status`, and in `bytes` the
      // size of the receive.
      kNack,
      // Return `bytes` of eager messages to `src`.
      kCredit,
    };
    Kind kind;
    int src = 0;
    uint64_t receive = 0;
    uint64_t message = 0;
    uint64_t bytes = 0;
    absl::Status status;
    Payload payload;
  };
  using Actions = absl::InlinedVector<Action, 2>;

  // `rank`: this rank, of `size` ranks. `channels` must outlive the matcher.
  Matcher(int rank, int size, const Channels& channels, uint64_t eager_window = kEagerWindow)
      : rank_(rank),
        eager_window_(eager_window),
        channels_(channels),
        peers_(static_cast<std::size_t>(size)) {}

  // ---- Calls of this rank. `receive` is a number that was not used before.

  void post(uint64_t receive, int src, uint64_t channel, int64_t tag, uint64_t size, Actions& actions);
  // Removes the receive: no action reports it any more. Does nothing if the receive is done.
  void cancel(uint64_t receive);
  // The channel has ended with `reason`: fails its receives and drops its waiting messages.
  void end_channel(uint64_t channel, const absl::Status& reason, Actions& actions);
  // Returns why no message can be sent to the rank, with its name in the channel; OK unless the rank is lost.
  absl::Status lost_status(uint64_t channel, int rank) const;
  bool is_lost(int rank) const { return peers_[static_cast<std::size_t>(rank)].lost; }

  // ---- Events from `src`, which is another rank or this one.

  absl::Status on_eager(int src, uint64_t channel, int64_t tag, Payload payload, Actions& actions);
  absl::Status on_rts(int src, uint64_t channel, int64_t tag, uint64_t size, uint64_t message,
                      Actions& actions);
  absl::Status on_data(int src, uint64_t message, Payload payload, Actions& actions);
  // All data of the announced `message` was received before a receive was found for it. From now on it is an
  // eager message.
  absl::Status on_buffered(int src, uint64_t message, Payload payload, Actions& actions);
  // An eager message of `size` bytes was received without the matcher. It is charged to the window and
  // returned at once.
  absl::Status on_bypassed(int src, uint64_t size, Actions& actions);
  // Whether a receive is posted for a message with this source, channel and tag.
  bool has_receive_for(int src, uint64_t channel, int64_t tag) const;
  void on_cancel(int src, uint64_t message, absl::StatusCode code, Actions& actions);
  // `src` is lost: no more messages arrive from it. Messages that have arrived can still be received.
  // Receives that wait for `src` fail, and so do receives from any rank if all other ranks are lost. `reason`
  // continues the rank's name in the error, for example "has left".
  void on_lost(int src, const absl::Status& reason, Actions& actions);

  // Number of messages and receives that wait, or whose data is awaited.
  std::size_t size() const { return receives_.size() + waiting_ + pending_rts_.size(); }

 private:
  using Key = std::tuple<uint64_t, int64_t, int>;  // Channel, tag, source. kAnyRank only in keys of receives.
  using MessageKey = std::pair<int, uint64_t>;     // Source, message id.

  struct Posted {
    uint64_t receive;
    uint64_t order;
    uint64_t size;
  };
  struct Arrived {
    uint64_t order;
    uint64_t size;
    uint64_t message;  // Id of an announced message; 0 for an eager message.
    Payload payload;
  };
  struct Queue {
    std::list<Posted> posted;
    std::list<Arrived> arrived;
  };
  struct Receive {
    Key key;
    std::list<Posted>::iterator position;
    uint64_t message = 0;  // Message for which CTS was sent; then the receive is not in a queue any more.
    int src = kAnyRank;    // Source of that message.
  };
  struct PendingRts {
    Key key;
    std::list<Arrived>::iterator position;
    uint64_t size;
    bool cts_sent = false;
    uint64_t receive = 0;  // Set when CTS was sent; 0 if the receive was cancelled.
  };
  struct Peer {
    // Bytes of eager messages, including kMessageCost for each: those that wait here, and those that were
    // received but not yet returned as credit.
    uint64_t waiting_bytes = 0;
    uint64_t uncredited_bytes = 0;
    std::size_t pending_rts = 0;
    bool lost = false;
    absl::Status reason;
  };

  Peer& peer(int src) { return peers_[static_cast<std::size_t>(src)]; }
  bool all_others_lost() const;
  // Finds the oldest receive for an arrived message, and removes it from its queue.
  std::optional<Posted> take_posted(uint64_t channel, int64_t tag, int src);
  std::optional<Posted> take_front_posted(const Key& key);
  // Returns the source of the oldest waiting message for a receive.
  std::optional<int> find_arrived(int src, uint64_t channel, int64_t tag) const;
  // `arrived` must not be in a queue.
  void match(const Posted& posted, int src, const Key& key, Arrived arrived, Actions& actions);
  // An eager message of this size is charged to the window of `src`; return_credit() reverses it.
  absl::Status charge_window(int src, uint64_t size);
  void return_credit(int src, uint64_t size, Actions& actions);
  void fail(uint64_t receive, absl::Status status, Actions& actions);
  void erase_if_empty(const Key& key);

  const int rank_;
  const uint64_t eager_window_;
  const Channels& channels_;
  std::vector<Peer> peers_;
  HashMap<Key, Queue> queues_;
  HashMap<uint64_t, Receive> receives_;
  // Announced messages that wait, or for which CTS was sent.
  HashMap<MessageKey, PendingRts> pending_rts_;
  uint64_t next_order_ = 0;
  std::size_t posted_to_any_ = 0;
  std::size_t waiting_ = 0;
};

}  // namespace gradwire::collectives::cpu
