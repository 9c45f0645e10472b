#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "gradwire/collectives/cpu/p2p/effects.h"
#include "gradwire/collectives/cpu/p2p/frame.h"

namespace gradwire::collectives::cpu {

// What the carrier of an Endpoint is to send next, per rank and in order. Not thread-safe.
class Outboxes {
 public:
  // `send`: the message of a kEager, kRts or kData frame, else null.
  struct Entry {
    Frame frame;
    SendPtr send;
  };

  explicit Outboxes(int size) : boxes_(static_cast<std::size_t>(size)) {}

  bool has(int dst) const { return !box(dst).entries.empty(); }
  // Entries without a message.
  std::size_t answers(int dst) const { return box(dst).answers; }
  // Entries of all ranks.
  std::size_t size() const { return size_; }
  const Entry& front(int dst) const { return box(dst).entries.front(); }
  // Adds the entry as the last, or the first.
  void push(int dst, Entry entry, bool first = false);
  Entry pop(int dst);
  // Removes the entry of the message, if there is one.
  void erase(const SendPtr& send);
  // Nothing can be said to the rank any more: drops its entries, and those that would be pushed.
  void close(int dst);

 private:
  struct Box {
    bool closed = false;
    std::size_t answers = 0;
    std::deque<Entry> entries;
  };
  Box& box(int rank) { return boxes_[static_cast<std::size_t>(rank)]; }
  const Box& box(int rank) const { return boxes_[static_cast<std::size_t>(rank)]; }

  std::vector<Box> boxes_;
  std::size_t size_ = 0;
};

// The sending half of an Endpoint: messages of one rank until they have left or failed, and per rank the
// window, the count of announced messages, and the outbox: what the carrier is to send next, in order.
//
// A message is queued, and leaves at once if the window has room for it: queued -> sending -> done. Otherwise
// it is announced: queued -> announcing -> announced -> cleared -> sending -> done. It ends at once in every
// stage in which the carrier does not use it; else when the carrier has let go of it.
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

  // Whether a message of this size may go without being asked for; then it counts in the window.
  bool take_window(int dst, std::size_t size);
  // Such a message was not sent.
  void untake_window(int dst, std::size_t size);
  // InvalidArgument when it returns more than was taken.
  absl::Status return_window(int dst, uint64_t bytes);

  // Gives the message an id and decides how it goes. ResourceExhausted: the receiver has left too many
  // unanswered.
  absl::Status add(const SendPtr& send, uint64_t id, const std::string& dst_name);
  // Puts it, added, into the outbox.
  void enqueue(const SendPtr& send, Effects& effects);

  Outboxes& outboxes() { return outboxes_; }
  const Outboxes& outboxes() const { return outboxes_; }
  // Removes the first entry for the rank; its message is with the carrier until one of the next three calls.
  // REQUIRES: outboxes().has(dst)
  Outgoing take(int dst);
  // The carrier has said the announcement, or could not.
  void rts_sent(const SendPtr& send, const absl::Status& status, Effects& effects);
  // The carrier has sent all data, or has a copy: it succeeds, even if it was to end meanwhile.
  void sent(const SendPtr& send, Effects& effects);
  // The carrier uses the caller's memory no more, because it was to let go (kRetract), or nothing can be sent
  // to the rank.
  void released(const SendPtr& send, Effects& effects);
  // The carrier sends no more of the data: it failed with `status`, or was to let go. `known`: the receiver
  // waits for it.
  void unsent(const SendPtr& send, bool known, const absl::Status& status, Effects& effects);

  // The receiver's answers. An answer that comes after the end of the message is ignored.
  void on_clear(int from, uint64_t id, Effects& effects);
  void on_nack(int from, uint64_t id, absl::Status why, Effects& effects);
  SendPtr find(uint64_t id) const;
  // The message `id` of an announcement, if it waits for an answer from `from`.
  SendPtr find_pending_rts(int from, uint64_t id) const;
  // Ends the message now, or when the carrier has let go of it.
  void end(const SendPtr& send, absl::Status status, Effects& effects);
  // Ends it whatever its stage.
  void finish(const SendPtr& send, absl::Status status, Effects& effects);
  bool contains(const Send& send) const { return sends_.contains(send.id); }
  bool empty() const { return sends_.empty(); }
  // The messages for which `chosen` is true: first those that are queued, so that each is found at the front
  // of its outbox when they are ended one by one, then the others; both in the order in which they were sent.
  std::vector<SendPtr> select(absl::FunctionRef<bool(const Send&)> chosen) const;

 private:
  struct Peer {
    uint64_t eager_bytes = 0;   // Not returned, with their cost.
    std::size_t announced = 0;  // Unanswered.
  };
  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  void settle(Send& send);
  // The receiver hears that no more of the message comes, before anything that waits in the outbox.
  void say_cancel(const Send& send, absl::StatusCode code, Effects& effects);

  const std::size_t eager_bytes_;
  const std::size_t max_pending_rts_;
  const uint64_t eager_window_;
  std::vector<Peer> peers_;
  Outboxes outboxes_;
  absl::flat_hash_map<uint64_t, SendPtr> sends_;
};

}  // namespace gradwire::collectives::cpu
