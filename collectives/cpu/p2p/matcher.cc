#include "gradwire/collectives/cpu/p2p/matcher.h"

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

absl::Status Matcher::take_window(int src, uint64_t size) {
  Peer& from = peer(src);
  const uint64_t room = eager_window_ - from.held - from.taken;
  if (size > room || size + kMessageCost > room) {
    return absl::InvalidArgumentError(
        absl::StrCat("more than ", eager_window_, " bytes of messages that nobody asked for"));
  }
  from.held += size + kMessageCost;
  return absl::OkStatus();
}

void Matcher::return_credit(int src, uint64_t size, Actions& actions) {
  Peer& from = peer(src);
  from.held -= size + kMessageCost;
  from.taken += size + kMessageCost;
  // Seldom, so that it costs little, but long before the sender has to announce what is small.
  if (from.taken < eager_window_ / 4) return;
  actions.push_back({.kind = Kind::kCredit, .src = src, .bytes = std::exchange(from.taken, 0)});
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

void Matcher::match(const Posted& posted, int src, const Key& key, Arrived arrived, Actions& actions) {
  const bool fits = posted.size == arrived.size;
  if (arrived.message != 0) {
    auto announced = pending_rts_.find({src, arrived.message});
    if (announced == pending_rts_.end()) {
      fail(posted.receive, gone(std::get<0>(key), src), actions);
      return;
    }
    --peer(src).announced;
    if (fits) {
      announced->second.cleared = true;
      announced->second.receive = posted.receive;
      Receive& receive = receives_[posted.receive];
      receive.message = arrived.message;
      receive.src = src;
      actions.push_back(
          {.kind = Kind::kClear, .src = src, .receive = posted.receive, .message = arrived.message});
      return;
    }
    pending_rts_.erase(announced);
    actions.push_back({.kind = Kind::kNack,
                       .src = src,
                       .message = arrived.message,
                       .bytes = posted.size,
                       .status = absl::InvalidArgumentError("another size")});
  } else {
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
       absl::InvalidArgumentError(absl::StrCat(
           "a message of ", arrived.size, " bytes came from ", channels_.name_of(std::get<0>(key), src),
           " (tag ", std::get<1>(key), ") for a receive of ", posted.size, " bytes")),
       actions);
}

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
    const int lost = src != kAnyRank ? src : rank_ == 0 ? 1 : 0;
    fail(receive, gone(channel, lost), actions);
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
  if (entry.message != 0) {
    pending_rts_.find({entry.src, entry.message})->second.receive = 0;
  } else {
    queues_.find(entry.key)->second.posted.erase(entry.place);
    if (std::get<2>(entry.key) == kAnyRank) --posted_to_any_;
    erase_if_empty(entry.key);
  }
  receives_.erase(receive);
}

absl::Status Matcher::eager(int src, uint64_t channel, int64_t tag, Payload payload, Actions& actions) {
  const uint64_t size = payload.size();
  if (absl::Status full = take_window(src, size); !full.ok()) return full;
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

absl::Status Matcher::announce(int src, uint64_t channel, int64_t tag, uint64_t size, uint64_t message,
                               Actions& actions) {
  Peer& from = peer(src);
  if (from.announced >= kMaxPendingRts)
    return absl::InvalidArgumentError(absl::StrCat("more than ", kMaxPendingRts, " messages announced"));
  const Key key(channel, tag, src);
  auto [announced, fresh] = pending_rts_.try_emplace({src, message});
  if (!fresh) return absl::InvalidArgumentError(absl::StrCat("message ", message, " announced twice"));
  if (absl::Status aborted = channels_.state(channel); !aborted.ok()) {
    pending_rts_.erase(announced);
    actions.push_back({.kind = Kind::kNack, .src = src, .message = message, .status = std::move(aborted)});
    return absl::OkStatus();
  }
  announced->second.key = key;
  announced->second.size = size;
  ++from.announced;
  Arrived arrived{next_order_++, size, message, {}};
  if (const std::optional<Posted> posted = take_posted(channel, tag, src)) {
    match(*posted, src, key, std::move(arrived), actions);
    return absl::OkStatus();
  }
  std::list<Arrived>& queue = queues_[key].arrived;
  announced->second.place = queue.insert(queue.end(), std::move(arrived));
  ++waiting_;
  return absl::OkStatus();
}

absl::Status Matcher::data(int src, uint64_t message, Payload payload, Actions& actions) {
  auto found = pending_rts_.find({src, message});
  if (found == pending_rts_.end() || !found->second.cleared)
    return absl::InvalidArgumentError(
        absl::StrCat("data of message ", message, ", which was not cleared to be sent"));
  if (found->second.size != payload.size()) {
    return absl::InvalidArgumentError(absl::StrCat("data of ", payload.size(), " bytes of message ", message,
                                                   ", which was announced with ", found->second.size));
  }
  const uint64_t receive = found->second.receive;
  pending_rts_.erase(found);
  if (receive == 0) return absl::OkStatus();
  receives_.erase(receive);
  actions.push_back({.kind = Kind::kDeliver, .src = src, .receive = receive, .payload = std::move(payload)});
  return absl::OkStatus();
}

absl::Status Matcher::came(int src, uint64_t message, Payload payload, Actions& actions) {
  const auto found = pending_rts_.find({src, message});
  // It was dropped with its channel.
  if (found == pending_rts_.end()) return passed(src, payload.size(), actions);
  if (found->second.cleared || found->second.size != payload.size())
    return absl::InvalidArgumentError(absl::StrCat("message ", message, ", which is another one"));
  if (absl::Status full = take_window(src, payload.size()); !full.ok()) return full;
  found->second.place->message = 0;
  found->second.place->payload = std::move(payload);
  --peer(src).announced;
  pending_rts_.erase(found);
  return absl::OkStatus();
}

absl::Status Matcher::passed(int src, uint64_t size, Actions& actions) {
  absl::Status taken = take_window(src, size);
  if (taken.ok()) return_credit(src, size, actions);
  return taken;
}

bool Matcher::awaits(int src, uint64_t channel, int64_t tag) const {
  const auto posted = [&](int from) {
    const auto found = queues_.find(Key(channel, tag, from));
    return found != queues_.end() && !found->second.posted.empty();
  };
  return posted(src) || (posted_to_any_ > 0 && posted(kAnyRank));
}

void Matcher::withdraw(int src, uint64_t message, absl::StatusCode code, Actions& actions) {
  auto found = pending_rts_.find({src, message});
  if (found == pending_rts_.end()) return;
  const Announced announced = found->second;
  pending_rts_.erase(found);
  if (!announced.cleared) {
    --peer(src).announced;
    queues_.find(announced.key)->second.arrived.erase(announced.place);
    --waiting_;
    erase_if_empty(announced.key);
  } else if (announced.receive != 0) {
    fail(announced.receive,
         absl::AbortedError(
             absl::StrCat(channels_.name_of(std::get<0>(announced.key), src),
                          " gave up the message that it had announced: ", absl::StatusCodeToString(code))),
         actions);
  }
}

}  // namespace gradwire::collectives::cpu
