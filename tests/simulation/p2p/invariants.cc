// The part of World that checks the invariants.

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/tests/simulation/p2p/world.h"

namespace gradwire::p2p_simulation {

void World::violate(std::string what) {
  if (violation_.empty()) violation_ = std::move(what);
}

void World::end(Operation& operation, const absl::Status& status) {
  trace("  ", name(operation), " ends: ", status.ToString());
  if (!operation.is_send() && status.code() == absl::StatusCode::kInvalidArgument)
    cover(operation, Event::kAnotherSize);
  if (std::exchange(operation.ended, true)) return violate(absl::StrCat(name(operation), " ends twice"));
  if (!justified(operation, status.code()))
    violate(absl::StrCat(name(operation), " ends without cause: ", status.ToString()));
  const int rank = operation.rank, to = operation.peer;
  if (!operation.is_send()) {
    oracle(rank).remove(operation.number);
    return;
  }
  // The message was never sent.
  if (operation.eager && !operation.taken && rank != to && operation.send->id != 0)
    link(rank, to).outstanding -= operation.memory.size() + collectives::cpu::kMessageCost;
  if (rank == to && !operation.eager) oracle(rank).remove(operation.number);
  // A later read of this memory is detected.
  operation.memory.assign(operation.memory.size(), '!');
}

bool World::justified(const Operation& operation, absl::StatusCode code) const {
  const int rank = operation.rank;
  const Operation* const partner = operation.partner < 0 ? nullptr : &operations_[operation.partner];
  const bool same_size = partner != nullptr && partner->memory.size() == operation.memory.size();
  const bool any = operation.peer == kAnyRank;
  const bool channel_ended = oracle(rank).ended(operation.channel) ||
                             (operation.is_send() && oracle(operation.peer).ended(operation.channel));
  switch (code) {
    case absl::StatusCode::kOk:
      // A cancelled message that was sent completely before the carrier could release it has been sent.
      if (operation.cancelled && !(operation.is_send() && operation.taken)) return false;
      return (operation.is_send() && operation.eager) || same_size;
    case absl::StatusCode::kCancelled:
      return operation.cancelled || ranks_[rank].closed || channel_ended;
    case absl::StatusCode::kAborted:
      return channel_ended || (!operation.is_send() && partner != nullptr && partner->cancel_received);
    case absl::StatusCode::kDeadlineExceeded:
      return operation.deadline <= absl::FromUnixSeconds(now_);
    case absl::StatusCode::kInvalidArgument:
      return partner != nullptr && !same_size;
    case absl::StatusCode::kResourceExhausted:
      return operation.is_send() && operation.send->id == 0;
    case absl::StatusCode::kUnavailable:
      if (operation.failed || (partner != nullptr && link(rank, partner->rank).broken)) return true;
      return any ? all_others_lost(rank) : link(rank, operation.peer).broken;
    default:
      return false;
  }
}

int World::pending_rts(int from, int to) const {
  int count = 0;
  for (const Operation& each : operations_) {
    if (!each.is_send() || each.rank != from || each.peer != to || each.ended) continue;
    if (!each.eager && each.send->id != 0 && !(each.cts_received && each.rts_sent)) ++count;
  }
  return count;
}

// No frame is in transit: every operation that has not ended waits for an operation that has not begun.
void World::check_quiescent() {
  for (const Operation& each : operations_) {
    const Endpoint& endpoint = *ranks_[each.rank].endpoint;
    const bool known =
        each.is_send() ? endpoint.sends().contains(*each.send) : endpoint.contains(*each.receive);
    if (known == each.ended)
      violate(absl::StrCat(name(each), each.ended ? " stays after its end" : " is not known any more"));
    if (each.ended) continue;
    const int where = each.is_send() ? each.peer : each.rank;
    const bool lost = each.peer == kAnyRank ? all_others_lost(each.rank) : link(each.rank, each.peer).lost;
    if (lost || !oracle(where).waits(each.number)) violate(absl::StrCat(name(each), " hangs"));
  }
  for (int rank = 0; rank < size_; ++rank) check_room(rank);
}

void World::check_room(int rank) {
  const Endpoint& endpoint = *ranks_[rank].endpoint;
  if (endpoint.sends().outboxes().size() > 0)
    violate(absl::StrCat("the outbox of rank ", rank, " is not empty"));
  std::size_t waiting = oracle(rank).receives().size();
  std::vector<uint64_t> held(size_);
  for (const int number : oracle(rank).messages()) {
    const Operation& message = operations_[number];
    // An announced message is in two tables, and only in its queue when its sender is lost.
    waiting += message.eager || link(rank, message.rank).lost ? 1 : 2;
    if (message.eager) held[message.rank] += message.memory.size() + collectives::cpu::kMessageCost;
  }
  if (endpoint.matcher().size() != waiting)
    violate(absl::StrCat("at rank ", rank, " ", endpoint.matcher().size(), " operations wait, expected ",
                         waiting));
  for (int from = 0; from < size_; ++from) {
    if (from == rank || link(rank, from).broken) continue;
    const uint64_t outstanding = link(from, rank).outstanding;
    if (outstanding < held[from] || outstanding - held[from] >= window_ / 4)
      violate(absl::StrCat("the window from rank ", from, " to rank ", rank, " lacks ", outstanding));
  }
}

void World::check_end() {
  for (const Operation& each : operations_) {
    if (!each.ended) violate(absl::StrCat(name(each), " does not end"));
  }
  for (const Rank& each : ranks_) {
    if (!each.endpoint->idle() || !each.oracle->receives().empty()) violate("an operation is left");
    if (!each.streams.empty()) violate("a partly received message is left");
  }
}

Operation* World::find_send(int rank, uint64_t id) {
  for (Operation& each : operations_) {
    if (each.is_send() && each.rank == rank && each.send->id == id) return &each;
  }
  return nullptr;
}

bool World::all_others_lost(int rank) const {
  for (int other = 0; other < size_; ++other) {
    if (other != rank && !link(rank, other).lost) return false;
  }
  return true;
}

std::string World::contents(const Operation& send) {
  std::string bytes(send.memory.size(), ' ');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(128 + (i + 1) * send.number);
  return bytes;
}

std::string World::name(const Operation& operation) const {
  return absl::StrCat(operation.is_send() ? "send " : "receive ", operation.number, " (rank ", operation.rank,
                      operation.is_send() ? " to " : " from ", operation.peer, ", channel ",
                      operation.channel, ", tag ", operation.tag, ", ", operation.memory.size(), " bytes)");
}

void World::cover(const Operation& operation, Event event) {
  if (coverage_ == nullptr || operation.ended) return;
  if (operation.is_send()) {
    coverage_->hit(Coverage::kSend, static_cast<std::size_t>(operation.send->stage), event);
  } else {
    const Operation* const message = operation.partner < 0 ? nullptr : &operations_[operation.partner];
    const bool cts_sent =
        message != nullptr && !message->eager && message->memory.size() == operation.memory.size();
    coverage_->hit(Coverage::kReceive, cts_sent ? Coverage::kCtsSent : Coverage::kWaiting, event);
  }
}

void World::cover_each(Event event, absl::FunctionRef<bool(const Operation&)> chosen) {
  if (coverage_ == nullptr) return;
  for (const Operation& each : operations_) {
    if (chosen(each)) cover(each, event);
  }
}

}  // namespace gradwire::p2p_simulation
