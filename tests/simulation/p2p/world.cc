#include "gradwire/tests/simulation/p2p/world.h"

#include "absl/strings/str_cat.h"

namespace gradwire::p2p_simulation {
namespace {

constexpr std::size_t kEagerBytes = 4;
constexpr uint64_t kMostOperations = 40;
// The usual size of a message with this tag. Some messages have another size.
constexpr std::size_t kSizes[] = {3, 6, 0};

absl::Time time_of(int64_t seconds) { return absl::FromUnixSeconds(seconds); }

}  // namespace

World::World(uint64_t seed, simulation::CoverageTable* coverage, simulation::Trace* trace)
    : random_(seed),
      coverage_(coverage),
      trace_(trace),
      size_(static_cast<int>(random_.between(2, 4))),
      rings_(random_.below(2) == 0),
      max_pending_rts_(random_.between(2, 3)),
      // Room for three short messages, or for five, whose credit is returned for two at a time.
      window_((random_.below(2) == 0 ? 3 : 5) * (kEagerBytes + collectives::cpu::kMessageCost)),
      faults_(random_.below(3) == 0 ? 0 : random_.below(80)) {
  links_.resize(size_ * size_);
  for (int rank = 0; rank < size_; ++rank) {
    Rank& each = ranks_.emplace_back();
    each.endpoint = std::make_unique<Endpoint>(Endpoint::Options{.rank = rank,
                                                                 .size = size_,
                                                                 .eager_bytes = kEagerBytes,
                                                                 .max_pending_rts = max_pending_rts_,
                                                                 .eager_window = window_});
    each.oracle = std::make_unique<Oracle>(operations_);
  }
  this->trace(size_, " ranks, ", rings_ ? "rings" : "connections", ", window ", window_);
}

const std::string& World::run() {
  const int64_t steps = random_.between(40, 160);
  for (int64_t i = 0; i < steps && violation_.empty(); ++i) step();
  if (violation_.empty()) deliver_all();
  if (violation_.empty()) finish();
  return violation_;
}

void World::step() {
  ++steps_;
  const int rank = random_.below(size_), other = random_.below(size_);
  if (random_.per_mille(faults_)) {
    switch (random_.below(7)) {
      case 0:
      case 1:
        return end_channel(rank, random_.between(1, 3), /*forget=*/random_.below(2) == 0);
      case 2:
        if (random_.below(4) == 0) close(rank);
        return;
      case 3:
        if (rank != other) link(rank, other).broken = link(other, rank).broken = true;
        return;
      case 4:
        return fail_sends(rank, other);
      default:
        return lose(rank, other);
    }
  }
  const uint64_t choice = random_.below(100);
  if (choice < 18) {
    if (operations_.size() < kMostOperations) send(rank);
  } else if (choice < 34) {
    if (operations_.size() < kMostOperations) receive(rank);
  } else if (choice < 39) {
    if (!operations_.empty()) cancel(operations_[random_.below(operations_.size())]);
  } else if (choice < 43) {
    pass_time(rank);
  } else if (choice < 44) {
    deliver_all();
  } else if (choice < 62) {
    take(rank, other);
  } else if (choice < 74) {
    std::vector<Carried>& carried = link(rank, other).carried;
    if (!carried.empty()) complete(rank, other, random_.below(carried.size()));
  } else {
    deliver(rank, other, /*answer=*/random_.below(2) == 0);
  }
}

Operation& World::add(int rank, int peer) {
  Operation& added = operations_.emplace_back();
  added.number = static_cast<int>(operations_.size()) - 1;
  added.rank = rank;
  added.peer = peer;
  added.channel = random_.between(1, 3);
  added.tag = random_.between(0, 2);
  added.memory.resize(kSizes[random_.per_mille(80) ? random_.below(3) : added.tag]);
  added.deadline = random_.below(5) == 0 ? time_of(now_ + random_.between(0, 6)) : absl::InfiniteFuture();
  return added;
}

void World::send(int rank) {
  Operation& operation = add(rank, random_.below(size_));
  const int to = operation.peer;
  operation.memory = contents(operation);
  const collectives::cpu::Span data{operation.memory.data(), operation.memory.size()};
  operation.send = std::make_shared<collectives::cpu::Send>(nullptr, to, operation.channel, operation.tag,
                                                            data, operation.deadline);
  numbers_[operation.send.get()] = operation.number;
  const uint64_t cost = data.size + collectives::cpu::kMessageCost;
  const bool fits = link(rank, to).outstanding + cost <= window_;
  const bool full = pending_rts(rank, to) >= static_cast<int>(max_pending_rts_);
  const bool open = !ranks_[rank].closed && !oracle(rank).ended(operation.channel) && !link(rank, to).lost;
  operation.eager = data.size <= kEagerBytes && fits;
  const bool accepted = open && (operation.eager || !full);
  trace("rank ", rank, " sends ", name(operation), accepted ? "" : ", which is refused");
  act(rank, [&](Endpoint& endpoint, Effects& effects) {
    // Only the rank itself knows when the window to itself has room again.
    const bool own = rank == to;
    endpoint.send(operation.send, effects);
    const bool added = operation.send->id != 0;
    if (own) operation.eager = operation.send->eager;
    if (added && operation.send->eager != operation.eager) violate("the size of the window is wrong");
    if (!own && added != accepted)
      violate(added ? "a send is accepted wrongly" : "a send is refused wrongly");
    if (!added) return;
    if (own) oracle(rank).add_message(operation.number);
    if (!own && operation.eager) link(rank, to).outstanding += cost;
  });
}

void World::receive(int rank) {
  const int from = static_cast<int>(random_.below(size_ + 1)) - 1;
  Operation& operation = add(rank, from);
  operation.memory.assign(operation.memory.size(), '-');
  const collectives::cpu::Span data{operation.memory.data(), operation.memory.size()};
  operation.receive = std::make_shared<collectives::cpu::Receive>(nullptr, from, operation.channel,
                                                                  operation.tag, data, operation.deadline);
  numbers_[operation.receive.get()] = operation.number;
  const bool lost = from == kAnyRank ? all_others_lost(rank) : link(rank, from).lost;
  trace("rank ", rank, " receives ", name(operation));
  const bool waits = !ranks_[rank].closed && oracle(rank).add_receive(operation.number, !lost);
  act(rank, [&](Endpoint& endpoint, Effects& effects) { endpoint.receive(operation.receive, effects); });
  if (!waits && !operation.ended)
    violate(absl::StrCat(name(operation), " waits for a message that cannot arrive"));
}

void World::cancel(Operation& operation) {
  if (operation.ended) return;
  trace("rank ", operation.rank, " cancels ", name(operation));
  cover(operation, Event::kCancelled);
  operation.cancelled = true;
  act(operation.rank, [&](Endpoint& endpoint, Effects& effects) {
    const absl::Status reason = absl::CancelledError("by its user");
    operation.is_send() ? endpoint.end(operation.send, reason, effects)
                        : endpoint.end(operation.receive, reason, effects);
  });
}

void World::pass_time(int rank) {
  now_ += random_.between(1, 3);
  const absl::Time now = time_of(now_);
  const auto late = [&](const Operation& each) {
    return !each.ended && each.rank == rank && each.deadline <= now;
  };
  trace("rank ", rank, " checks its deadlines at ", now_);
  cover_each(Event::kLate, late);
  for (const Operation& each : operations_) {
    const bool ending = each.is_send() && !each.send->ended.ok();
    if (late(each) && !ending && ranks_[rank].endpoint->next_deadline() > each.deadline)
      violate(absl::StrCat("the deadline of ", name(each), " is not observed"));
  }
  act(rank, [&](Endpoint& endpoint, Effects& effects) { endpoint.expire(now, effects); });
  for (const Operation& each : operations_) {
    if (late(each) && !(each.is_send() && !each.send->ended.ok()))
      violate(absl::StrCat(name(each), " does not end at its deadline"));
  }
}

void World::end_channel(int rank, uint64_t channel, bool forget) {
  trace("rank ", rank, forget ? " forgets" : " aborts", " channel ", channel);
  cover_each(Event::kChannelEnded,
             [&](const Operation& each) { return each.rank == rank && each.channel == channel; });
  oracle(rank).end_channel(channel);
  act(rank, [&](Endpoint& endpoint, Effects& effects) {
    forget ? endpoint.forget(channel, effects)
           : endpoint.abort(channel, absl::AbortedError("by its user"), effects);
  });
}

void World::close(int rank) {
  trace("rank ", rank, " closes");
  if (!ranks_[rank].closed)
    cover_each(Event::kClosed, [&](const Operation& each) { return each.rank == rank; });
  ranks_[rank].closed = true;
  act(rank, [](Endpoint& endpoint, Effects& effects) {
    endpoint.close(absl::CancelledError("the rank has closed"), effects);
  });
  // The connections to the other ranks break.
  for (int other = 0; other < size_; ++other) {
    if (other != rank) link(rank, other).broken = link(other, rank).broken = true;
  }
}

void World::deliver_all() {
  trace("all frames are delivered");
  for (bool progress = true; progress && violation_.empty();) {
    progress = false;
    for (int from = 0; from < size_; ++from) {
      for (int to = 0; to < size_; ++to) {
        if (link(from, to).broken) lose(from, to);
        while (take(from, to)) progress = true;
        while (deliver(from, to, false) || deliver(from, to, true)) progress = true;
        while (!link(from, to).carried.empty() && complete(from, to, 0)) progress = true;
      }
    }
  }
  if (violation_.empty()) check_quiescent();
}

void World::finish() {
  if (random_.below(2) == 0) {
    for (int rank = 0; rank < size_; ++rank) close(rank);
  } else {
    for (Operation& each : operations_) cancel(each);
  }
  deliver_all();
  if (violation_.empty()) check_end();
}

}  // namespace gradwire::p2p_simulation
