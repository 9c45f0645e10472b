// Matching of messages with receives, and the eager and rendezvous protocols of the receiver. Control flow:
// - post() searches the messages that have arrived, and on_eager() and on_rts() search the receives that are
//   posted. The side that comes second finds the first, and both call match().
// - match() ends an eager message. It sends CTS or NACK for an announced one, which on_data() or on_cancel()
//   ends.
// Invariant: for one channel, tag and source, messages and receives never wait at the same time.

#include "gradwire/collectives/cpu/p2p/matcher.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace gradwire::collectives::cpu {

using Kind = Matcher::Action::Kind;

bool Matcher::all_others_lost() const {
  if (peers_.size() == 1) return false;
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    if (static_cast<int>(i) != rank_ && !peers_[i].lost) return false;
  }
  return true;
}

void Matcher::erase_if_empty(const Key& key) {
  auto found = queues_.find(key);
  if (found != queues_.end() && found->second.posted.empty() && found->second.arrived.empty())
    queues_.erase(found);
}

void Matcher::fail(uint64_t receive, absl::Status status, Actions& actions) {
  receives_.erase(receive);
  actions.push_back({.kind = Kind::kFail, .receive = receive, .status = std::move(status)});
}

// A sender counts the same bytes before it sends (SendTable::take_window), so only a sender that violates the
// protocol exceeds the window. waiting_bytes + uncredited_bytes never exceed eager_window_, so `room` does
// not wrap around.
absl::Status Matcher::charge_window(int src, uint64_t size) {
  Peer& from = peer(src);
  const uint64_t room = eager_window_ - from.waiting_bytes - from.uncredited_bytes;
  // The first comparison keeps the sum in the second from wrapping around.
  if (size > room || size + kMessageCost > room) {
    return absl::InvalidArgumentError(
        absl::StrCat("eager messages exceed the window of ", eager_window_, " bytes"));
  }
  from.waiting_bytes += size + kMessageCost;
  return absl::OkStatus();
}

void Matcher::return_credit(int src, uint64_t size, Actions& actions) {
  Peer& from = peer(src);
  from.waiting_bytes -= size + kMessageCost;
  from.uncredited_bytes += size + kMessageCost;
  // Credit is returned in batches, so that it costs little, but long before the sender would have to use the
  // rendezvous protocol for short messages.
  if (from.uncredited_bytes < eager_window_ / 4) return;
  actions.push_back({.kind = Kind::kCredit, .src = src, .bytes = std::exchange(from.uncredited_bytes, 0)});
}

std::optional<Matcher::Posted> Matcher::take_front_posted(const Key& key) {
  auto found = queues_.find(key);
  if (found == queues_.end() || found->second.posted.empty()) return std::nullopt;
  const Posted posted = found->second.posted.front();
  found->second.posted.pop_front();
  if (std::get<2>(key) == kAnyRank) --posted_to_any_;
  erase_if_empty(key);
  return posted;
}

// Receives from this source and receives from any source are in two queues. The older of the two heads gets
// the message.
std::optional<Matcher::Posted> Matcher::take_posted(uint64_t channel, int64_t tag, int src) {
  const Key key(channel, tag, src);
  if (posted_to_any_ == 0) return take_front_posted(key);
  const Key any(channel, tag, kAnyRank);
  const auto order = [this](const Key& of) {
    auto found = queues_.find(of);
    return found == queues_.end() || found->second.posted.empty() ? UINT64_MAX
                                                                  : found->second.posted.front().order;
  };
  return take_front_posted(order(key) <= order(any) ? key : any);
}

// A receive from any rank compares the oldest messages of all sources. `order` numbers messages and receives
// in the order of their arrival, so the lowest order is the oldest message.
std::optional<int> Matcher::find_arrived(int src, uint64_t channel, int64_t tag) const {
  if (waiting_ == 0) return std::nullopt;
  std::optional<int> best;
  uint64_t order = UINT64_MAX;
  const int first = src == kAnyRank ? 0 : src;
  const int last = src == kAnyRank ? static_cast<int>(peers_.size()) - 1 : src;
  for (int from = first; from <= last; ++from) {
    auto found = queues_.find(Key(channel, tag, from));
    if (found == queues_.end() || found->second.arrived.empty()) continue;
    if (found->second.arrived.front().order >= order) continue;
    order = found->second.arrived.front().order;
    best = from;
  }
  return best;
}

// Ends in one of these ways. In all of them the receive has left its queue.
// - An announced message that fits: CTS is sent. The entries of the message and of the receive remain until
//   the data, a kCancel, or the loss of the source.
// - An eager message that fits: the receive is done.
// - A message of another size: the receive fails, and the message is used up. An announced one is answered
//   with NACK, so that its sender fails too; the sender of an eager one is not informed.
void Matcher::match(const Posted& posted, int src, const Key& key, Arrived arrived, Actions& actions) {
  const bool fits = posted.size == arrived.size;
  if (arrived.message != 0) {
    auto rts = pending_rts_.find({src, arrived.message});
    // The source was lost after it had announced the message. Only the message's position in the queue
    // remains (on_lost).
    if (rts == pending_rts_.end()) {
      fail(posted.receive, lost_status(std::get<0>(key), src), actions);
      return;
    }
    // The message stops counting here, when the answer is queued. Its sender stops counting it later, when
    // the answer arrives. So a sender that keeps its own limit never exceeds the limit here.
    --peer(src).pending_rts;
    if (fits) {
      rts->second.cts_sent = true;
      rts->second.receive = posted.receive;
      Receive& receive = receives_[posted.receive];
      receive.message = arrived.message;
      receive.src = src;
      actions.push_back(
          {.kind = Kind::kCts, .src = src, .receive = posted.receive, .message = arrived.message});
      return;
    }
    pending_rts_.erase(rts);
    actions.push_back({.kind = Kind::kNack,
                       .src = src,
                       .message = arrived.message,
                       .bytes = posted.size,
                       .status = absl::InvalidArgumentError("size mismatch")});
  } else {
    // The bytes are returned in either case: the message does not wait any more.
    return_credit(src, arrived.size, actions);
    if (fits) {
      receives_.erase(posted.receive);
      actions.push_back({.kind = Kind::kDeliver,
                         .src = src,
                         .receive = posted.receive,
                         .payload = std::move(arrived.payload)});
      return;
    }
  }
  fail(posted.receive,
       absl::InvalidArgumentError(absl::StrCat("message size mismatch: got ", arrived.size, " bytes from ",
                                               channels_.name_of(std::get<0>(key), src), " (tag ",
                                               std::get<1>(key), "), expected ", posted.size)),
       actions);
}

// Order of the checks:
// 1. The channel has ended: the receive fails.
// 2. A message waits: the receive takes it, even if its source is lost, because the message arrived before
//    the loss.
// 3. No message can arrive any more: the receive fails.
// 4. The receive is queued.
void Matcher::post(uint64_t receive, int src, uint64_t channel, int64_t tag, uint64_t size,
                   Actions& actions) {
  if (absl::Status aborted = channels_.state(channel); !aborted.ok()) {
    fail(receive, std::move(aborted), actions);
    return;
  }
  Posted posted{receive, next_order_++, size};
  if (const std::optional<int> from = find_arrived(src, channel, tag)) {
    const Key key(channel, tag, *from);
    std::list<Arrived>& queue = queues_.find(key)->second.arrived;
    Arrived arrived = std::move(queue.front());
    queue.pop_front();
    --waiting_;
    erase_if_empty(key);
    receives_.emplace(receive, Receive{key, {}});
    match(posted, *from, key, std::move(arrived), actions);
    return;
  }
  if (src == kAnyRank ? all_others_lost() : peer(src).lost) {
    // For a receive from any rank all others are lost, so the error may name any of them.
    const int lost = src != kAnyRank ? src : rank_ == 0 ? 1 : 0;
    fail(receive, lost_status(channel, lost), actions);
    return;
  }
  const Key key(channel, tag, src);
  std::list<Posted>& queue = queues_[key].posted;
  receives_.emplace(receive, Receive{key, queue.insert(queue.end(), posted)});
  if (src == kAnyRank) ++posted_to_any_;
}

void Matcher::cancel(uint64_t receive) {
  auto found = receives_.find(receive);
  if (found == receives_.end()) return;
  const Receive& entry = found->second;
  // CTS was sent, so the data may be on its way and cannot be refused any more. The entry of the message
  // remains, and on_data() drops the data when it arrives. The entry exists: on_data(), on_cancel() and
  // on_lost() remove it only together with the receive.
  if (entry.message != 0) {
    pending_rts_.find({entry.src, entry.message})->second.receive = 0;
  } else {
    queues_.find(entry.key)->second.posted.erase(entry.position);
    if (std::get<2>(entry.key) == kAnyRank) --posted_to_any_;
    erase_if_empty(entry.key);
  }
  receives_.erase(receive);
}

absl::Status Matcher::on_eager(int src, uint64_t channel, int64_t tag, Payload payload, Actions& actions) {
  const uint64_t size = payload.size();
  if (absl::Status full = charge_window(src, size); !full.ok()) return full;
  // A late message of an ended channel is dropped. Its bytes are charged and returned, because its sender has
  // charged them too.
  if (channels_.ended(channel)) {
    return_credit(src, size, actions);
    return absl::OkStatus();
  }
  const Key key(channel, tag, src);
  Arrived arrived{next_order_++, size, 0, std::move(payload)};
  if (const std::optional<Posted> posted = take_posted(channel, tag, src)) {
    match(*posted, src, key, std::move(arrived), actions);
    return absl::OkStatus();
  }
  queues_[key].arrived.push_back(std::move(arrived));
  ++waiting_;
  return absl::OkStatus();
}

absl::Status Matcher::on_rts(int src, uint64_t channel, int64_t tag, uint64_t size, uint64_t message,
                             Actions& actions) {
  Peer& from = peer(src);
  if (from.pending_rts >= kMaxPendingRts)
    return absl::InvalidArgumentError(absl::StrCat("more than ", kMaxPendingRts, " pending RTS"));
  const Key key(channel, tag, src);
  auto [rts, inserted] = pending_rts_.try_emplace({src, message});
  if (!inserted) return absl::InvalidArgumentError(absl::StrCat("duplicate RTS for message ", message));
  if (absl::Status aborted = channels_.state(channel); !aborted.ok()) {
    pending_rts_.erase(rts);
    // The sender's operation ends with the code of the NACK. Without an answer it would wait until its
    // deadline.
    actions.push_back({.kind = Kind::kNack, .src = src, .message = message, .status = std::move(aborted)});
    return absl::OkStatus();
  }
  rts->second.key = key;
  rts->second.size = size;
  ++from.pending_rts;
  Arrived arrived{next_order_++, size, message, {}};
  if (const std::optional<Posted> posted = take_posted(channel, tag, src)) {
    match(*posted, src, key, std::move(arrived), actions);
    return absl::OkStatus();
  }
  std::list<Arrived>& queue = queues_[key].arrived;
  rts->second.position = queue.insert(queue.end(), std::move(arrived));
  ++waiting_;
  return absl::OkStatus();
}

// Data is accepted only after CTS: otherwise a peer could send any amount of it, past the window. The size
// must be the announced one, because the receive was checked against that.
absl::Status Matcher::on_data(int src, uint64_t message, Payload payload, Actions& actions) {
  auto found = pending_rts_.find({src, message});
  if (found == pending_rts_.end() || !found->second.cts_sent)
    return absl::InvalidArgumentError(
        absl::StrCat("unexpected data of message ", message, ": no CTS was sent for it"));
  if (found->second.size != payload.size()) {
    return absl::InvalidArgumentError(absl::StrCat("data of message ", message, " has ", payload.size(),
                                                   " bytes, expected ", found->second.size));
  }
  const uint64_t receive = found->second.receive;
  pending_rts_.erase(found);
  // The receive was cancelled after CTS was sent.
  if (receive == 0) return absl::OkStatus();
  receives_.erase(receive);
  actions.push_back({.kind = Kind::kDeliver, .src = src, .receive = receive, .payload = std::move(payload)});
  return absl::OkStatus();
}

absl::Status Matcher::on_buffered(int src, uint64_t message, Payload payload, Actions& actions) {
  const auto found = pending_rts_.find({src, message});
  // The message was dropped with its channel.
  if (found == pending_rts_.end()) return on_bypassed(src, payload.size(), actions);
  if (found->second.cts_sent || found->second.size != payload.size())
    return absl::InvalidArgumentError(absl::StrCat("message ", message, " does not match its RTS"));
  if (absl::Status full = charge_window(src, payload.size()); !full.ok()) return full;
  // The message keeps its position in the queue, so later messages do not overtake it. With message 0 it
  // counts as eager: from now on the window bounds its memory, not the limit for pending RTS.
  found->second.position->message = 0;
  found->second.position->payload = std::move(payload);
  --peer(src).pending_rts;
  pending_rts_.erase(found);
  return absl::OkStatus();
}

absl::Status Matcher::on_bypassed(int src, uint64_t size, Actions& actions) {
  absl::Status taken = charge_window(src, size);
  if (taken.ok()) return_credit(src, size, actions);
  return taken;
}

bool Matcher::has_receive_for(int src, uint64_t channel, int64_t tag) const {
  const auto posted = [&](int from) {
    const auto found = queues_.find(Key(channel, tag, from));
    return found != queues_.end() && !found->second.posted.empty();
  };
  return posted(src) || (posted_to_any_ > 0 && posted(kAnyRank));
}

// kCancel may cross the answer to the message. What it does depends on how far the message has got here:
// - Unknown: this rank has sent NACK, or has dropped the message with its channel or source. Nothing is left
//   to do.
// - Waiting: the message is removed, and no receive sees it.
// - CTS sent: the receive has been matched with this message, and must not take another one. It fails.
// - CTS sent, but the receive was cancelled: the entry of the message is removed, because no data will
//   arrive.
void Matcher::on_cancel(int src, uint64_t message, absl::StatusCode code, Actions& actions) {
  auto found = pending_rts_.find({src, message});
  if (found == pending_rts_.end()) return;
  const PendingRts rts = found->second;
  pending_rts_.erase(found);
  if (!rts.cts_sent) {
    --peer(src).pending_rts;
    queues_.find(rts.key)->second.arrived.erase(rts.position);
    --waiting_;
    erase_if_empty(rts.key);
  } else if (rts.receive != 0) {
    fail(rts.receive,
         absl::AbortedError(absl::StrCat(
             channels_.name_of(std::get<0>(rts.key), src),
             " cancelled its message before the data was sent: ", absl::StatusCodeToString(code))),
         actions);
  }
}

// The part of Matcher that handles the end of a channel and the loss of a rank.

void Matcher::on_lost(int src, const absl::Status& reason, Actions& actions) {
  Peer& from = peer(src);
  if (from.lost) return;
  from.lost = true;
  from.reason = reason;
  from.pending_rts = 0;
  // Announced messages keep their position in the queue. A receive that meets one fails, because the data
  // will not arrive. If they were removed, a later message would overtake them.
  absl::erase_if(pending_rts_, [&](const auto& entry) { return entry.first.first == src; });
  const bool alone = all_others_lost();
  std::vector<uint64_t> failed;
  for (const auto& [receive, entry] : receives_) {
    const int awaited = entry.message != 0 ? entry.src : std::get<2>(entry.key);
    if (awaited == src || (awaited == kAnyRank && alone)) failed.push_back(receive);
  }
  // The map has no order. Receives fail in the order in which they were posted, so that the same events give
  // the same actions.
  std::sort(failed.begin(), failed.end());
  for (const uint64_t receive : failed) {
    const Receive& entry = receives_.find(receive)->second;
    const uint64_t channel = std::get<0>(entry.key);
    // A receive whose message has CTS is not in a queue, and the entry of its message was erased above.
    // cancel() needs that entry.
    if (entry.message == 0) cancel(receive);
    fail(receive, lost_status(channel, src), actions);
  }
}

absl::Status Matcher::lost_status(uint64_t channel, int rank) const {
  const Peer& other = peers_[static_cast<std::size_t>(rank)];
  if (!other.lost) return absl::OkStatus();
  return absl::Status(other.reason.code(),
                      absl::StrCat(channels_.name_of(channel, rank), " ", other.reason.message()));
}

// Nothing of the channel remains in queues_ or receives_. Messages for which CTS was sent stay in
// pending_rts_: their data still arrives, and on_data() drops it.
// 1. Fail the receives. cancel() removes those that wait from their queues.
// 2. Drop the waiting messages: return the bytes of eager ones, and refuse announced ones with NACK, so that
//    the sender's operation ends.
void Matcher::end_channel(uint64_t channel, const absl::Status& reason, Actions& actions) {
  std::vector<uint64_t> failed;
  for (const auto& [receive, entry] : receives_) {
    if (std::get<0>(entry.key) == channel) failed.push_back(receive);
  }
  std::sort(failed.begin(), failed.end());
  for (const uint64_t receive : failed) {
    cancel(receive);
    fail(receive, reason, actions);
  }
  absl::erase_if(queues_, [&](auto& entry) {
    auto& [key, queue] = entry;
    if (std::get<0>(key) != channel) return false;
    const int src = std::get<2>(key);
    for (const Arrived& arrived : queue.arrived) {
      --waiting_;
      if (arrived.message == 0) {
        return_credit(src, arrived.size, actions);
      } else if (pending_rts_.erase({src, arrived.message}) > 0) {
        --peer(src).pending_rts;
        actions.push_back({.kind = Kind::kNack, .src = src, .message = arrived.message, .status = reason});
      }
    }
    return true;
  });
}

}  // namespace gradwire::collectives::cpu
