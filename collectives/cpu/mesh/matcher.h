#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "gradwire/collectives/cpu/mesh/mesh_wire.h"

namespace gradwire::collectives::cpu {

// Brings the messages that come to one rank together with its receives. No threads, sockets or clocks: events in,
// actions out; what a peer did wrong comes back as InvalidArgument, and then nothing has changed.
//
// A receive is posted -> matched, and done at once if the message is here; of an announced message, asked -> done. A
// message is waiting -> matched; an announced one asked -> gone. A receive takes of the messages with its channel, tag
// and source the one that came first; a message goes to the receive that was posted first. Each receive is reported in
// exactly one action (kDeliver or kFail), unless it was cancelled.
//
// Not thread-safe.
class Matcher {
 public:
  static constexpr int kAny = -1;

  struct Action {
    enum class Kind {
      // Copy `payload`, of the receive's size, from `src`.
      kDeliver,
      // The receive ended with `status`.
      kFail,
      // Ask `src` for the data of its `message`, for `receive`.
      kAsk,
      // Tell `src` that nobody wants its `message`: status().code(), and `bytes` that would have been taken.
      kRefuse,
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

  // `rank`: this one's, of `size`.
  Matcher(int rank, int size) : rank_(rank), peers_(static_cast<std::size_t>(size)) {}

  // ---- From this rank. `receive`: a number that was not used before.

  void post(uint64_t receive, int src, uint64_t channel, int64_t tag, uint64_t size, Actions& actions);
  // Nothing is reported of the receive any more. Does nothing when it is done.
  void cancel(uint64_t receive);
  // Everything in the channel, and all that comes, fails with `reason`. The first reason stays.
  void abort(uint64_t channel, const absl::Status& reason, Actions& actions);
  // As abort(), with Cancelled, and for good: its number is not used again. Of the last kMostForgotten channels what still
  // comes is dropped; what came later than that would wait, within its sender's window.
  void forget(uint64_t channel, Actions& actions);
  static constexpr std::size_t kMostForgotten = std::size_t{1} << 14;
  // OK unless it was aborted or forgotten.
  absl::Status state(uint64_t channel) const;
  // How errors of the channel name ranks: by rank of the world, the number.
  void name_ranks(uint64_t channel, absl::flat_hash_map<int, int> names);
  // "rank 2"; of one that has no name in the channel "rank 5 of the world".
  std::string name_of(uint64_t channel, int rank) const;
  // Why nothing can be sent to the rank, for who would in the channel; OK unless it is lost.
  absl::Status gone(uint64_t channel, int rank) const;

  // ---- From `src`, another rank or this one.

  absl::Status eager(int src, uint64_t channel, int64_t tag, Payload payload, Actions& actions);
  absl::Status announce(int src, uint64_t channel, int64_t tag, uint64_t size, uint64_t message,
                        Actions& actions);
  absl::Status data(int src, uint64_t message, Payload payload, Actions& actions);
  // All of an announced message is here, which no receive has been found for: from now on it is an eager one.
  absl::Status came(int src, uint64_t message, Payload payload, Actions& actions);
  // An eager message has come and gone that did not meet its receive here.
  absl::Status passed(int src, uint64_t size, Actions& actions);
  // Whether a receive is posted for such a message.
  bool awaits(int src, uint64_t channel, int64_t tag) const;
  void withdraw(int src, uint64_t message, absl::StatusCode code, Actions& actions);
  // Nothing comes from `src` any more. What is here can still be received; receives that wait for it, or for any rank
  // when all others are lost, fail. `reason`: what its name is put before, as "has left".
  void lost(int src, const absl::Status& reason, Actions& actions);

  // Messages and receives that wait, or whose data is awaited.
  std::size_t size() const { return receives_.size() + waiting_ + announced_.size(); }

 private:
  using Key = std::tuple<uint64_t, int64_t, int>;  // Channel, tag, source (kAny: of receives).
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
    uint64_t message = 0;  // Asked for; not in a queue any more.
    int src = kAny;        // Of the message.
  };
  struct Announced {
    Key key;
    std::list<Arrived>::iterator place;
    uint64_t size;
    bool asked = false;
    uint64_t receive = 0;  // Once it is asked for; 0 when nobody wants it any more.
  };
  struct Peer {
    // Of eager messages, with their cost: that wait, and that were taken and not returned.
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
  void clear(uint64_t channel, const absl::Status& reason, Actions& actions);
  void erase_if_empty(const Key& key);

  const int rank_;
  std::vector<Peer> peers_;
  absl::flat_hash_map<Key, Queue> queues_;
  absl::flat_hash_map<uint64_t, Receive> receives_;
  // Waiting, or asked for.
  absl::flat_hash_map<MessageKey, Announced> announced_;
  absl::flat_hash_map<uint64_t, absl::Status> aborted_;
  // The ends of `aborted_` that were forgotten, the oldest first.
  std::deque<uint64_t> forgotten_;
  absl::flat_hash_map<uint64_t, absl::flat_hash_map<int, int>> names_;
  uint64_t next_order_ = 0;
  std::size_t posted_to_any_ = 0;
  std::size_t waiting_ = 0;
};

}  // namespace gradwire::collectives::cpu
