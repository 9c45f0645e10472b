#include "gradwire/tests/simulation/references/small_scope.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "gradwire/tests/simulation/references/describe.h"

namespace gradwire::references_simulation {

using rpc::Id;
using rpc::ReferenceMessage;
using rpc::References;
using Kind = SmallScope::Move::Kind;

SmallScope::SmallScope(bool by_request, int forks, Fault fault)
    : references_{References(1), References(2), References(3)}, forks_left_(forks), fault_(fault) {
  for (References& references : references_) {
    for (int worker = 0; worker < kWorkers; ++worker) references.join(incarnation(worker));
  }
  if (!by_request) {
    references_[0].own(kRRef);
    value_ = true;
    handles_.push_back({.worker = 0});
    return;
  }
  const Id fork{2, ++ids_};
  --forks_left_;
  references_[1].begin_creation(kRRef, fork, 1);
  handles_.push_back({.worker = 1, .fork = fork});
  give_up_ = fork;
  Packet request{.kind = Packet::Kind::kCreate, .from = 1, .to = 0};
  request.reference = {.rref = kRRef, .owner = 1, .child = fork};
  send(std::move(request));
}

std::vector<SmallScope::Move> SmallScope::moves() const {
  std::vector<Move> moves;
  const int packets = static_cast<int>(packets_.size());
  for (int i = 0; i < packets; ++i) {
    const bool at_most_once =
        packets_[i].kind != Packet::Kind::kMessage && packets_[i].kind != Packet::Kind::kAnswer;
    moves.push_back({Kind::kDeliver, i});
    if (packets_[i].from == packets_[i].to) continue;
    if (fault_ == Fault::kLoss) moves.push_back({Kind::kDrop, i});
    if (fault_ == Fault::kDuplicate && !at_most_once) moves.push_back({Kind::kDuplicate, i});
  }
  for (int i = 0; i < static_cast<int>(handles_.size()); ++i) {
    const Held& held = handles_[i];
    if (!alive_[held.worker]) continue;
    moves.push_back({Kind::kRelease, i});
    for (int to = 0; to < kWorkers && forks_left_ > 0 && !held.failed; ++to) {
      if (!references_[held.worker].peers().is_lost(incarnation(to))) moves.push_back({Kind::kShare, i, to});
    }
  }
  if (!repeat_.empty()) moves.push_back({Kind::kRepeat});
  if (give_up_ && fault_ == Fault::kGiveUp && alive_[1]) moves.push_back({Kind::kGiveUp});
  for (int a = 0; a < kWorkers; ++a) {
    if (!alive_[a]) continue;
    if (fault_ == Fault::kCrash) moves.push_back({Kind::kCrash, a});
    for (int b = 0; b < kWorkers; ++b) {
      if (a == b) continue;
      if (fault_ == Fault::kBrokenLink && a < b) moves.push_back({Kind::kBreak, a, b});
      if (restore_[a][b] && alive_[b]) moves.push_back({Kind::kRestore, a, b});
      if (!alive_[b] && knows_[a][b] == 0) moves.push_back({Kind::kLose, a, b});
      if (!alive_[b] && knows_[a][b] == 1) moves.push_back({Kind::kFence, a, b});
      const bool idle = std::none_of(packets_.begin(), packets_.end(), [&](const Packet& packet) {
        return packet.from == b && packet.to == a;
      });
      // Only offer settle() if it would remove an entry; else it does not change the state.
      const bool remembers = references_[a].owner().remembers(incarnation(b)) ||
                             references_[a].revocations().remembers(incarnation(b));
      if (idle && remembers) moves.push_back({Kind::kSettle, a, b});
    }
  }
  return moves;
}

std::string SmallScope::apply(const Move& move) {
  Actions actions;
  switch (move.kind) {
    case Kind::kDeliver: {
      Packet packet = packets_[move.a];
      packets_.erase(packets_.begin() + move.a);
      const bool settled = std::none_of(
          packets_.begin(), packets_.begin() + move.a,
          [&](const Packet& other) { return other.from == packet.from && other.to == packet.to; });
      deliver(std::move(packet), settled);
      break;
    }
    case Kind::kDrop: {
      const Packet packet = packets_[move.a];
      packets_.erase(packets_.begin() + move.a);
      fault_ = Fault::kNone;
      lost(packet);
      break;
    }
    case Kind::kDuplicate:
      fault_ = Fault::kNone;
      packets_.push_back(packets_[move.a]);
      break;
    case Kind::kCrash:
      fault_ = Fault::kNone;
      alive_[move.a] = false;
      break;
    case Kind::kBreak:
      fault_ = Fault::kNone;
      restore_[move.a][move.b] = restore_[move.b][move.a] = true;
      break;
    case Kind::kRestore:
      restore_[move.a][move.b] = false;
      references_[move.a].link_restored(incarnation(move.b), actions);
      process(move.a, actions);
      break;
    case Kind::kGiveUp: {
      if (fault_ == Fault::kGiveUp) fault_ = Fault::kNone;
      const Id fork = give_up_;
      give_up_ = {};
      references_[1].end_creation(fork, actions);
      process(1, actions);
      break;
    }
    case Kind::kRepeat: {
      const Packet packet = repeat_.front();
      repeat_.clear();
      for (const ReferenceMessage& message :
           references_[packet.from].peers().unacknowledged(packet.message.to)) {
        if (message.kind == packet.message.kind && message.fork == packet.message.fork) send(packet);
      }
      break;
    }
    case Kind::kLose:
      lose(move.a, move.b);
      break;
    case Kind::kFence:
      knows_[move.a][move.b] = 2;
      references_[move.a].fence(incarnation(move.b), actions);
      process(move.a, actions);
      break;
    case Kind::kShare: {
      const Held held = handles_[move.a];
      const Id child{incarnation(held.worker), ++ids_};
      --forks_left_;
      const auto shared = references_[held.worker].share(kRRef, held.fork, child, incarnation(move.b));
      if (shared == References::Shared::kRefused) return "a usable handle cannot be shared";
      references_[held.worker].sent(child);
      Packet packet{.kind = Packet::Kind::kShare, .from = held.worker, .to = move.b};
      packet.reference = {
          .rref = kRRef, .owner = 1, .child = child, .registered = shared == References::Shared::kRegistered};
      send(std::move(packet));
      break;
    }
    case Kind::kRelease: {
      const Held held = handles_[move.a];
      handles_.erase(handles_.begin() + move.a);
      references_[held.worker].release(kRRef, held.fork, actions);
      process(held.worker, actions);
      break;
    }
    case Kind::kSettle:
      references_[move.a].settle(incarnation(move.b));
      break;
  }
  return violation_;
}

void SmallScope::send(Packet packet) { packets_.push_back(std::move(packet)); }

void SmallScope::lost(const Packet& packet) {
  switch (packet.kind) {
    case Packet::Kind::kMessage:
      repeat_.push_back(packet);
      break;
    case Packet::Kind::kAnswer: {
      Packet repeated{.kind = Packet::Kind::kMessage, .from = packet.to, .to = packet.from};
      repeated.message = packet.message;
      // The answer to a fence does not contain the whole message, so take the message from the sender's
      // table.
      for (const ReferenceMessage& message :
           references_[repeated.from].peers().unacknowledged(incarnation(repeated.to))) {
        if (message.kind == repeated.message.kind && message.fork == repeated.message.fork) {
          repeated.message = message;
        }
      }
      repeat_.push_back(std::move(repeated));
      break;
    }
    case Packet::Kind::kShare:
      restore_[packet.from][packet.to] = restore_[packet.to][packet.from] = true;
      break;
    case Packet::Kind::kCreate:
    case Packet::Kind::kCreated:
      if (alive_[1]) fault_ = Fault::kGiveUp;
      break;
  }
}

void SmallScope::deliver(Packet packet, bool settled) {
  if (!alive_[packet.to]) {
    // The packet is lost. If it is a kCreate, its creator gives up when it learns of the death.
    return;
  }
  References& references = references_[packet.to];
  const uint64_t from = incarnation(packet.from);
  Actions actions;
  switch (packet.kind) {
    case Packet::Kind::kMessage: {
      const auto answer = references.on_message(from, packet.message, settled, actions);
      process(packet.to, actions);
      if (!answer) return;
      Packet reply{.kind = Packet::Kind::kAnswer, .from = packet.to, .to = packet.from};
      reply.message = packet.message;
      reply.answer = *answer;
      return send(std::move(reply));
    }
    case Packet::Kind::kAnswer:
      references.on_answer(packet.message, packet.answer, actions);
      return process(packet.to, actions);
    case Packet::Kind::kShare: {
      using Received = References::Received;
      const Received received = references.receive(packet.reference, from, actions);
      const bool fork = received == Received::kConfirmed || received == Received::kUnconfirmed;
      if (fork || received == Received::kOwned) {
        handles_.push_back({.worker = packet.to, .fork = fork ? packet.reference.child : Id()});
        if (freed_ && alive_[0])
          violation_ = absl::StrCat(node_name(packet.to), " got a handle of a freed value");
      }
      if (received == Received::kInvalid) violation_ = "a valid reference is rejected as invalid";
      return process(packet.to, actions);
    }
    case Packet::Kind::kCreate: {
      if (references.peers().is_lost(from)) return;
      value_ = true;
      references.create(kRRef, packet.reference.child, from, actions);
      if (!actions.freed.empty()) value_ = false;
      process(packet.to, actions);
      Packet reply{.kind = Packet::Kind::kCreated, .from = packet.to, .to = packet.from};
      reply.reference = packet.reference;
      return send(std::move(reply));
    }
    case Packet::Kind::kCreated:
      give_up_ = {};
      if (fault_ == Fault::kGiveUp) fault_ = Fault::kNone;
      references.end_creation(packet.reference.child, actions);
      return process(packet.to, actions);
  }
}

void SmallScope::lose(int worker, int dead) {
  if (knows_[worker][dead] != 0) return;
  knows_[worker][dead] = 1;
  for (Held& held : handles_) held.failed |= held.worker == worker && dead == 0;
  Actions actions;
  references_[worker].lose(incarnation(dead), actions);
  process(worker, actions);
}

void SmallScope::process(int worker, Actions& actions) {
  if (!actions.freed.empty()) check_freed();
  std::sort(actions.send.begin(), actions.send.end(),
            [](const ReferenceMessage& a, const ReferenceMessage& b) {
              return std::tie(a.kind, a.to, a.fork) < std::tie(b.kind, b.to, b.fork);
            });
  for (ReferenceMessage& message : actions.send) {
    Packet packet{.kind = Packet::Kind::kMessage, .from = worker, .to = static_cast<int>(message.to) - 1};
    packet.message = std::move(message);
    send(std::move(packet));
  }
  for (const Actions::FenceAnswer& answer : actions.fence_answers) {
    Packet reply{.kind = Packet::Kind::kAnswer, .from = worker, .to = static_cast<int>(answer.asker) - 1};
    reply.message.kind = ReferenceMessage::Kind::kFence;
    reply.message.to = incarnation(worker);
    reply.message.round = answer.round;
    send(std::move(reply));
  }
  for (uint64_t dead : actions.accused) lose(worker, static_cast<int>(dead) - 1);
}

void SmallScope::check_freed() {
  if (!value_ || !alive_[0]) return;
  value_ = false;
  freed_ = true;
  for (const Held& held : handles_) {
    if (alive_[held.worker] && !held.failed) {
      violation_ = absl::StrCat("freed while ", node_name(held.worker), " has a handle");
    }
  }
  for (const Packet& packet : packets_) {
    if (packet.kind != Packet::Kind::kShare || !alive_[packet.from] || !alive_[packet.to]) continue;
    if (references_[packet.to].revocations().is_revoked(incarnation(packet.from), packet.reference.child))
      continue;
    violation_ = absl::StrCat("freed while a reference is on its way to ", node_name(packet.to));
  }
}

std::string SmallScope::check_end() const {
  for (int worker = 0; worker < kWorkers; ++worker) {
    if (!alive_[worker]) continue;
    const References& references = references_[worker];
    if (references.owner().size() + references.owner().remembered_deletes() + references.holder().forks() +
            references.holder().children() + references.holder().unconfirmed() +
            references.peers().unacknowledged() + references.revocations().revoked() +
            references.fences().unanswered() + (references.fences().due() ? 1 : 0) >
        0) {
      return absl::StrCat(node_name(worker), " has entries in its tables at the end");
    }
  }
  return "";
}

std::string SmallScope::describe(const Move& move) const {
  static constexpr const char* kKinds[] = {"deliver",       "drop",    "duplicate", "crash", "break link",
                                           "link restored", "give up", "repeat",    "lose",  "fence",
                                           "share",         "release", "settle"};
  const std::string kind = kKinds[static_cast<int>(move.kind)];
  switch (move.kind) {
    case Kind::kDeliver:
    case Kind::kDrop:
    case Kind::kDuplicate: {
      const Packet& packet = packets_[move.a];
      return absl::StrCat(kind, ": ", node_name(packet.from), " -> ", node_name(packet.to), ": ",
                          references_simulation::describe(packet));
    }
    case Kind::kShare:
      return absl::StrCat(node_name(handles_[move.a].worker), " shares with ", node_name(move.b));
    case Kind::kRelease:
      return absl::StrCat(node_name(handles_[move.a].worker), " releases fork ",
                          references_simulation::describe(handles_[move.a].fork));
    case Kind::kGiveUp:
    case Kind::kRepeat:
      return kind;
    default:
      return absl::StrCat(node_name(move.a), ": ", kind, " ", node_name(move.b));
  }
}

}  // namespace gradwire::references_simulation
