#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/collectives/cpu/p2p/effects.h"
#include "gradwire/collectives/cpu/p2p/frame.h"

namespace gradwire::collectives::cpu {

// The frames that the carrier of an Endpoint must send next, per rank and in order. Not thread-safe.
class Outboxes {
 public:
  // `send`: the message of a kEager, kRts or kData frame, otherwise null.
  struct Entry {
    Frame frame;
    SendPtr send;
  };

  explicit Outboxes(int size) : boxes_(static_cast<std::size_t>(size)) {}

  bool has(int dst) const { return !box(dst).entries.empty(); }
  // Number of entries that are not part of a message: answers and kCancel.
  std::size_t control_frames(int dst) const { return box(dst).control_frames; }
  // Number of entries of all ranks.
  std::size_t size() const { return size_; }
  const Entry& front(int dst) const { return box(dst).entries.front(); }
  // Adds the entry at the end, or at the front if `first`.
  void push(int dst, Entry entry, bool first = false);
  Entry pop(int dst);
  // Removes the entry of the message, if there is one.
  void erase(const SendPtr& send);
  // Closes the outbox of the rank: drops its entries and all later ones.
  void close(int dst);

 private:
  struct Box {
    bool closed = false;
    std::size_t control_frames = 0;
    std::deque<Entry> entries;
  };
  Box& box(int rank) { return boxes_[static_cast<std::size_t>(rank)]; }
  const Box& box(int rank) const { return boxes_[static_cast<std::size_t>(rank)]; }

  std::vector<Box> boxes_;
  std::size_t size_ = 0;
};

// The sending half of an Endpoint. It has the messages of one rank until they are sent or have failed. For
// each peer it has the window, the number of pending RTS, and the outbox: the frames that the carrier must
// send next, in order.
//
// Stages of an eager message, for which the window has room: queued -> sending -> done. Stages of other
// messages: queued -> sending RTS -> RTS sent -> CTS received -> sending -> done. A message that fails or is
// cancelled ends at once, except while the carrier is using its memory: then it ends when the carrier has
// released the memory.
//
// Not thread-safe.
class SendTable {
 public:
  using Outgoing = Outboxes::Entry;

  SendTable(int size, std::size_t eager_bytes, std::size_t max_pending_rts, uint64_t eager_window)
      : eager_bytes_(eager_bytes),
        max_pending_rts_(max_pending_rts),
        eager_window_(eager_window),
        peers_(static_cast<std::size_t>(size)),
        outboxes_(size) {}

  // If the window has room for an eager message of this size, charges the message to it and returns true.
  bool take_window(int dst, std::size_t size);
  // Reverses take_window() for a message that was not sent.
  void release_window(int dst, std::size_t size);
  // The receiver returned `bytes` of the window. InvalidArgument if that is more than was taken.
  absl::Status on_credit(int dst, uint64_t bytes);

  // Gives the message an id and decides which protocol it uses. ResourceExhausted if the receiver has too
  // many pending RTS of this rank.
  absl::Status add(const SendPtr& send, uint64_t id, const std::string& dst_name);
  // Puts a message that was added into the outbox.
  void enqueue(const SendPtr& send, Effects& effects);

  Outboxes& outboxes() { return outboxes_; }
  const Outboxes& outboxes() const { return outboxes_; }
  // Removes the first entry for the rank. The carrier then owns its message until it calls one of the next
  // four functions.
  Outgoing take(int dst);
  // The carrier has sent the RTS, or failed to.
  void rts_sent(const SendPtr& send, const absl::Status& status, Effects& effects);
  // The carrier has sent all data, or has copied it. The message succeeds, even if it was cancelled
  // meanwhile.
  void sent(const SendPtr& send, Effects& effects);
  // The carrier has released the caller's memory after kRetract, or because nothing can be sent to the rank
  // any more.
  void released(const SendPtr& send, Effects& effects);
  // The carrier stopped sending the data: it failed with `status`, or released the memory after kRetract.
  // `known`: the receiver knows of the message and waits for the rest, so it must be sent a kCancel.
  void unsent(const SendPtr& send, bool known, const absl::Status& status, Effects& effects);

  // The receiver's answers. An answer that arrives after the end of the message is ignored.
  void on_cts(int from, uint64_t id, Effects& effects);
  void on_nack(int from, uint64_t id, absl::Status why, Effects& effects);
  SendPtr find(uint64_t id) const;
  // Returns the announced message `id` if it waits for an answer from `from`, otherwise null.
  SendPtr find_pending_rts(int from, uint64_t id) const;
  // Ends the message now or, while the carrier uses its memory, when the carrier has released it.
  void end(const SendPtr& send, absl::Status status, Effects& effects);
  // Ends the message, whatever its stage.
  void finish(const SendPtr& send, absl::Status status, Effects& effects);
  bool contains(const Send& send) const { return sends_.contains(send.id); }
  bool empty() const { return sends_.empty(); }
  // Returns the messages for which `chosen` is true. The queued ones come first, so that each is at the front
  // of its outbox when the caller ends them one by one. Both parts are in the order of sending.
  std::vector<SendPtr> select(absl::FunctionRef<bool(const Send&)> chosen) const;

 private:
  struct Peer {
    uint64_t eager_bytes = 0;     // Taken from the window and not returned, with kMessageCost for each.
    std::size_t pending_rts = 0;  // Announced messages that were not answered.
  };
  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  void settle(Send& send);
  // Queues a kCancel in front of all other entries of the outbox.
  void push_cancel(const Send& send, absl::StatusCode code, Effects& effects);

  const std::size_t eager_bytes_;
  const std::size_t max_pending_rts_;
  const uint64_t eager_window_;
  std::vector<Peer> peers_;
  Outboxes outboxes_;
  HashMap<uint64_t, SendPtr> sends_;
};

}  // namespace gradwire::collectives::cpu
