// The part of World that carries frames to other ranks.

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/tests/simulation/p2p/world.h"

namespace gradwire::p2p_simulation {

bool World::take(int from, int to) {
  SendTable& sends = ranks_[from].endpoint->sends();
  Link& link = this->link(from, to);
  // Nothing is sent to a lost rank.
  if (!sends.outboxes().has(to) || !link.woken || link.lost ||
      (!link.carried.empty() && link.carried.back().blocks))
    return false;
  const SendTable::Outgoing next = sends.take(to);
  if (next.send == nullptr) {
    const bool answer = next.frame.kind != FrameKind::kCancel;
    enqueue(from, to, {next.frame, nullptr}, rings_ ? false : answer);
    return true;
  }
  Operation& operation = operation_of(next.send.get());
  operation.taken = true;
  trace("rank ", from, "'s carrier takes ", name(operation), ", kind ", static_cast<int>(next.frame.kind));
  const auto body = std::make_shared<Body>(Body{operation.number});
  Carried carried{.operation = operation.number, .kind = next.frame.kind};
  Item item{next.frame, body};
  if (!rings_) {
    carried.fails = link.broken || random_.per_mille(20);
    carried.body = body;
    if (next.frame.kind == FrameKind::kEager && random_.below(2) == 0) read(*body);
    carried.blocks = next.frame.kind == FrameKind::kRts || carried.fails || random_.below(2) == 0;
    if (!carried.fails) enqueue(from, to, item, false);
  } else if (next.frame.kind == FrameKind::kEager && (operation.memory.empty() || random_.below(2) == 0)) {
    read(*body);
    carried.body = body;
    enqueue(from, to, item, false);
  } else if (next.frame.kind == FrameKind::kEager) {
    item.frame.kind = FrameKind::kBegin;
    item.frame.id = next.send->id;
    enqueue(from, to, item, false);
  } else if (next.frame.kind == FrameKind::kRts) {
    enqueue(from, to, item, false);
  }
  link.carried.push_back(carried);
  // A ring takes a single record at once.
  if (rings_ && (next.frame.kind == FrameKind::kRts || carried.body != nullptr))
    complete(from, to, link.carried.size() - 1);
  return true;
}

void World::enqueue(int from, int to, Item item, bool answer) {
  // The receiver does not read any more.
  if (link(to, from).lost) {
    if (item.body != nullptr) item.body->ready = true;
    return;
  }
  (answer ? link(from, to).answers : link(from, to).frames).push_back(std::move(item));
}

void World::read(Body& body) {
  if (std::exchange(body.ready, true)) return;
  const Operation& operation = operations_[body.operation];
  if (operation.ended)
    violate(absl::StrCat("the memory of ", name(operation), " is read after the operation ended"));
  body.bytes = operation.memory;
}

bool World::complete(int from, int to, std::size_t which) {
  std::vector<Carried>& all = link(from, to).carried;
  const Carried carried = all[which];
  Operation& operation = operations_[carried.operation];
  const collectives::cpu::SendPtr send = operation.send;
  const bool data = carried.kind == FrameKind::kData;
  bool captured = false;
  if (!rings_ && carried.kind != FrameKind::kRts && !carried.fails && !carried.body->ready) {
    // The data is read when the receiver receives it, unless it is captured before.
    if (send->ended.ok()) {
      // While it is handed over, the carrier takes nothing else.
      all[which].blocks = false;
      return false;
    }
    read(*carried.body);
    captured = true;
  }
  if (rings_ && carried.kind != FrameKind::kRts && carried.body == nullptr) {
    const auto body = std::make_shared<Body>(Body{operation.number});
    read(*body);
    enqueue(from, to, {{.kind = FrameKind::kData, .size = operation.memory.size(), .id = send->id}, body},
            false);
  }
  all.erase(all.begin() + which);
  trace("rank ", from, "'s carrier ", carried.fails ? "failed to send " : "has sent ", name(operation));
  cover(operation, carried.fails ? Event::kNotTransmitted : Event::kTransmitted);
  const absl::Status failure = absl::UnavailableError("the transmission failed");
  operation.failed = carried.fails;
  if (carried.fails && operation.eager)
    link(from, to).outstanding -= operation.memory.size() + collectives::cpu::kMessageCost;
  act(from, [&](Endpoint& endpoint, Effects& effects) {
    if (carried.kind == FrameKind::kRts) {
      operation.rts_sent = !carried.fails;
      endpoint.sends().rts_sent(send, carried.fails ? failure : absl::OkStatus(), effects);
    } else if (carried.fails) {
      endpoint.sends().unsent(send, /*known=*/data, failure, effects);
    } else if (captured) {
      endpoint.sends().released(send, effects);
    } else {
      endpoint.sends().sent(send, effects);
    }
  });
  return true;
}

void World::retract(int from, const Operation& send) {
  // Over connections the data is captured in complete().
  std::vector<Carried>& carried = link(from, send.peer).carried;
  if (!rings_ || carried.empty() || carried.back().operation != send.number) return;
  trace("rank ", from, " stops writing ", name(send));
  carried.pop_back();
  act(from, [&](Endpoint& endpoint, Effects& effects) {
    endpoint.sends().unsent(send.send, /*known=*/true, absl::OkStatus(), effects);
  });
}

bool World::deliver(int from, int to, bool answer) {
  std::deque<Item>& items = answer ? link(from, to).answers : link(from, to).frames;
  if (items.empty()) return false;
  Item item = std::move(items.front());
  items.pop_front();
  trace("rank ", to, " receives kind ", static_cast<int>(item.frame.kind), " id ", item.frame.id, " from ",
        from);
  absl::Status status;
  act(to, [&](Endpoint&, Effects& effects) { status = arrive(from, to, item, effects); });
  if (!status.ok()) violate(absl::StrCat("a valid frame is refused: ", status.message()));
  return true;
}

absl::Status World::arrive(int from, int to, Item& item, Effects& effects) {
  Endpoint& endpoint = *ranks_[to].endpoint;
  const Frame& frame = item.frame;
  std::string bytes;
  switch (frame.kind) {
    case FrameKind::kEager:
    case FrameKind::kRts:
    case FrameKind::kBegin: {
      const int message = item.body->operation;
      oracle(to).add_message(message);
      int waiting = 0;
      for (const int each : oracle(to).messages())
        waiting += operations_[each].rank == from && !operations_[each].eager;
      if (waiting > static_cast<int>(max_pending_rts_)) violate("too many RTS are pending");
      if (frame.kind == FrameKind::kRts) break;
      if (frame.kind == FrameKind::kBegin) {
        ranks_[to].streams[{from, frame.id}] = {message};
        return endpoint.on_frame(from, frame, {}, effects);
      }
      read(*item.body);
      bytes = item.body->bytes;
      break;
    }
    case FrameKind::kData:
      read(*item.body);
      bytes = item.body->bytes;
      if (ranks_[to].streams.contains({from, frame.id}))
        return end_stream(from, to, frame, *item.body, effects);
      break;
    case FrameKind::kCancel: {
      Operation* const message = find_send(from, frame.id);
      message->cancel_received = true;
      oracle(to).remove(message->number);
      if (message->partner >= 0 && !operations_[message->partner].ended)
        cover(operations_[message->partner], Event::kCancelReceived);
      const auto stream = ranks_[to].streams.find({from, frame.id});
      if (stream == ranks_[to].streams.end()) break;
      const uint64_t size = operations_[stream->second.operation].memory.size();
      ranks_[to].streams.erase(stream);
      absl::Status passed = endpoint.on_bypassed(from, size, effects);
      if (!passed.ok()) return passed;
      break;
    }
    case FrameKind::kCts:
    case FrameKind::kNack:
      if (Operation* const message = find_send(to, frame.id)) {
        message->cts_received = frame.kind == FrameKind::kCts;
        if (!message->ended) cover(*message, message->cts_received ? Event::kCts : Event::kNack);
      }
      break;
    case FrameKind::kCredit:
      link(to, from).outstanding -= frame.size;
      break;
    default:
      break;
  }
  return endpoint.on_frame(from, frame, Payload::copy_of(bytes.data(), bytes.size()), effects);
}

absl::Status World::end_stream(int from, int to, const Frame& frame, const Body& body, Effects& effects) {
  Endpoint& endpoint = *ranks_[to].endpoint;
  const auto entry = ranks_[to].streams.extract({from, frame.id});
  const Stream& stream = entry.mapped();
  Payload payload = Payload::copy_of(body.bytes.data(), body.bytes.size());
  if (!stream.has_receive && !stream.unwanted)
    return endpoint.on_buffered(from, frame.id, std::move(payload), effects);
  absl::Status status = endpoint.on_bypassed(from, body.bytes.size(), effects);
  if (!status.ok() || stream.unwanted) return status;
  return endpoint.on_frame(from, frame, std::move(payload), effects);
}

void World::fail_sends(int rank, int other) {
  if (!link(rank, other).broken) return;
  trace("rank ", rank, " cannot send to ", other);
  cover_each(Event::kSendsFailed, [&](const Operation& each) {
    return each.is_send() && each.rank == rank && each.peer == other;
  });
  act(rank, [&](Endpoint& endpoint, Effects& effects) {
    endpoint.fail_sends(other, absl::UnavailableError("cannot be reached"), effects);
  });
}

void World::lose(int rank, int other) {
  if (!link(rank, other).broken || link(rank, other).lost) return;
  trace("rank ", rank, " loses ", other);
  cover_each(Event::kRankLost,
             [&](const Operation& each) { return each.rank == rank && each.peer == other; });
  link(rank, other).lost = true;
  // Frames in transit are dropped, and the connection releases the memory that this rank had lent it.
  for (std::deque<Item>* const items :
       {&link(rank, other).frames, &link(other, rank).frames, &link(other, rank).answers}) {
    for (Item& item : *items) {
      if (item.body != nullptr) item.body->ready = true;
    }
    items->clear();
  }
  std::erase_if(ranks_[rank].streams, [&](const auto& each) { return each.first.first == other; });
  act(rank, [&](Endpoint& endpoint, Effects& effects) {
    endpoint.lose(other, absl::UnavailableError("is lost"), effects);
  });
}

void World::reply(int rank, int to, const Frame& frame) {
  if (!rings_) return enqueue(rank, to, {frame, nullptr}, true);
  ranks_[rank].endpoint->sends().outboxes().push(to, {frame, nullptr});
  link(rank, to).woken = true;
}

void World::act(int rank, absl::FunctionRef<void(Endpoint&, Effects&)> event) {
  Effects effects;
  event(*ranks_[rank].endpoint, effects);
  for (Effect& effect : effects) perform(rank, effect);
}

void World::perform(int rank, Effect& effect) {
  if (!violation_.empty()) return;
  switch (effect.kind) {
    case Effect::Kind::kDeliver: {
      Operation& receive = operation_of(effect.receive.get());
      const std::string bytes(static_cast<const char*>(effect.payload.data()), effect.payload.size());
      if (receive.partner < 0) return violate(absl::StrCat(name(receive), " gets what is not its own"));
      const Operation& message = operations_[receive.partner];
      if (effect.rank != message.rank || bytes != contents(message) || bytes.size() != receive.memory.size())
        violate(absl::StrCat(name(receive), " gets other bytes than those of ", name(message)));
      cover(receive, Event::kDelivered);
      end(receive, absl::OkStatus());
      receive.memory = bytes;
      break;
    }
    case Effect::Kind::kEndReceive:
      end(operation_of(effect.receive.get()), effect.status);
      break;
    case Effect::Kind::kEndSend:
      end(operation_of(effect.send.get()), effect.status);
      break;
    case Effect::Kind::kCts: {
      const Operation& receive = operation_of(effect.receive.get());
      const Operation* const message = find_send(effect.rank, effect.frame.id);
      if (message == nullptr || receive.ended || receive.partner != message->number)
        return violate(absl::StrCat(name(receive), " sends CTS for a message that is not matched to it"));
      const auto stream = ranks_[rank].streams.find({effect.rank, effect.frame.id});
      if (stream == ranks_[rank].streams.end()) return reply(rank, effect.rank, effect.frame);
      stream->second.has_receive = true;
      break;
    }
    case Effect::Kind::kReply: {
      const auto stream = ranks_[rank].streams.find({effect.rank, effect.frame.id});
      if (effect.frame.kind != FrameKind::kNack || stream == ranks_[rank].streams.end())
        return reply(rank, effect.rank, effect.frame);
      stream->second.unwanted = true;
      break;
    }
    case Effect::Kind::kRetract: {
      const Operation& send = operation_of(effect.send.get());
      if (!send.ended) retract(rank, send);
      break;
    }
    case Effect::Kind::kWake:
      link(rank, effect.rank).woken = true;
      break;
  }
}

}  // namespace gradwire::p2p_simulation
