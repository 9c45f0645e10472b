#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "gradwire/collectives/cpu/p2p/channels.h"
#include "gradwire/collectives/cpu/p2p/frame.h"
#include "gradwire/collectives/cpu/p2p/payload.h"

namespace gradwire::collectives::cpu {

// Matches the messages that come to one rank with its receives. No threads, sockets or clocks: events in,
// actions out. An error of a peer is returned as InvalidArgument, and then nothing has changed.
//
// A receive is posted -> matched, and done at once if the message is here; if it was announced, posted
// -> cleared -> done. A message is waiting -> matched; an announced one waiting -> cleared -> done. A receive
// takes the first message with its channel, tag and source; a message goes to the first receive that was
// posted for it. Each receive is reported in exactly one action (kDeliver or kFail), unless it was cancelled.
//
// Not thread-safe.
class Matcher {
 public:
  struct Action {
    enum class Kind {
      // Copy `payload`, of the receive's size, from `src`.
      kDeliver,
      // The receive ended with `status`.
      kFail,
      // `src` may send the data of its `message`, for `receive`.
      kClear,
      // `src` shall not send its `message`: the code of `status`, and `bytes` that would have been taken.
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

  // `rank`: this one's, of `size`. `channels` outlives it.
  Matcher(int rank, int size, const Channels& channels, uint64_t eager_window = kEagerWindow)
      : rank_(rank),
        eager_window_(eager_window),
        channels_(channels),
        peers_(static_cast<std::size_t>(size)) {}

  // ---- From this rank. `receive`: a number that was not used before.

  void post(uint64_t receive, int src, uint64_t channel, int64_t tag, uint64_t size, Actions& actions);
  // Nothing is reported of the receive any more. Does nothing when it is done.
  void cancel(uint64_t receive);
  // The channel has ended with `reason`: drops what waits in it.
  void clear(uint64_t channel, const absl::Status& reason, Actions& actions);
  // Why nothing can be sent to the rank, for who would in the channel; OK unless it is lost.
  absl::Status gone(uint64_t channel, int rank) const;
  bool is_lost(int rank) const { return peers_[static_cast<std::size_t>(rank)].lost; }

  // ---- From `src`, another rank or this one.

  absl::Status eager(int src, uint64_t channel, int64_t tag, Payload payload, Actions& actions);
  absl::Status announce(int src, uint64_t channel, int64_t tag, uint64_t size, uint64_t message,
                        Actions& actions);
  absl::Status data(int src, uint64_t message, Payload payload, Actions& actions);
  // All of an announced message is here, and no receive has been found for it: from now on it is an eager
  // one.
  absl::Status came(int src, uint64_t message, Payload payload, Actions& actions);
  // An eager message has come and gone that did not meet its receive here.
  absl::Status passed(int src, uint64_t size, Actions& actions);
  // Whether a receive is posted for such a message.
  bool awaits(int src, uint64_t channel, int64_t tag) const;
  void withdraw(int src, uint64_t message, absl::StatusCode code, Actions& actions);
  // Nothing comes from `src` any more. What is here can still be received; receives that wait for it, or for
  // any rank when all others are lost, fail. `reason`: what its name is put before, as "has left".
  void lost(int src, const absl::Status& reason, Actions& actions);

  // Messages and receives that wait, or whose data is awaited.
  std::size_t size() const { return receives_.size() + waiting_ + pending_rts_.size(); }

 private:
  using Key = std::tuple<uint64_t, int64_t, int>;  // Channel, tag, source (kAnyRank: of receives).
  using MessageKey = std::pair<int, uint64_t>;     // Source, message.

  struct Posted {
    uint64_t receive;
    uint64_t order;
    uint64_t size;
  };
  struct Arrived {
    uint64_t order;
    uint64_t size;
    uint64_t message;  // 0: eager.
    Payload payload;
  };
  struct Queue {
    std::list<Posted> posted;
    std::list<Arrived> arrived;
  };
  struct Receive {
    Key key;
    std::list<Posted>::iterator place;
    uint64_t message = 0;  // Cleared to send; not in a queue any more.
    int src = kAnyRank;    // Of the message.
  };
  struct Announced {
    Key key;
    std::list<Arrived>::iterator place;
    uint64_t size;
    bool cleared = false;
    uint64_t receive = 0;  // Once it is cleared; 0 when nobody wants it any more.
  };
  struct Peer {
    // Bytes of eager messages, with their cost, that wait, and that were taken and not returned.
    uint64_t held = 0;
    uint64_t taken = 0;
    std::size_t announced = 0;
    bool lost = false;
    absl::Status reason;
  };

  Peer& peer(int src) { return peers_[static_cast<std::size_t>(src)]; }
  bool all_others_lost() const;
  // The receive for a message that has come; taken out of its queue.
  std::optional<Posted> take_posted(uint64_t channel, int64_t tag, int src);
  std::optional<Posted> take_front_posted(const Key& key);
  // The source of the message for a receive, if one waits.
  std::optional<int> find_arrived(int src, uint64_t channel, int64_t tag) const;
  // `arrived`: not in a queue (any more).
  void match(const Posted& posted, int src, const Key& key, Arrived arrived, Actions& actions);
  // An eager message of this size takes its part of the window, and gives it back.
  absl::Status take_window(int src, uint64_t size);
  void return_credit(int src, uint64_t size, Actions& actions);
  void fail(uint64_t receive, absl::Status status, Actions& actions);
  void erase_if_empty(const Key& key);

  const int rank_;
  const uint64_t eager_window_;
  const Channels& channels_;
  std::vector<Peer> peers_;
  absl::flat_hash_map<Key, Queue> queues_;
  absl::flat_hash_map<uint64_t, Receive> receives_;
  // Waiting, or cleared to send.
  absl::flat_hash_map<MessageKey, Announced> pending_rts_;
  uint64_t next_order_ = 0;
  std::size_t posted_to_any_ = 0;
  std::size_t waiting_ = 0;
};

}  // namespace gradwire::collectives::cpu
