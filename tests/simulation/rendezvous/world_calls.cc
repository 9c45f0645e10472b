#include <algorithm>
#include <utility>

#include "gradwire/tests/simulation/rendezvous/world.h"

namespace gradwire::rendezvous_simulation {
namespace {

// The pause after an error, as in RendezvousClient.
constexpr Time kRetryInterval = 100 * kMillisecond;

}  // namespace

// Simulates the client's thread between two calls.
void World::drive(SimNode& node) {
  if (node.finished || node.call != kNoCall) return;
  Machine& machine = *node.machine;
  while (!node.reports.empty()) {
    const auto report = std::move(node.reports.front());
    node.reports.pop_front();
    report(machine, local(node));
  }
  const bool ended = machine.update().kind == rendezvous::RendezvousUpdate::Kind::kEnded;
  notice_update(node);
  if (!node.known && !ended && !machine.done()) return issue(node, {.kind = Call::Kind::kGet});
  Machine::Wanted wanted = machine.wanted(local(node));
  notice_update(node);
  if (machine.done()) {
    node.finished = true;
  } else if (wanted.beat) {
    issue(node, {.kind = Call::Kind::kBeat, .beat = *std::move(wanted.beat)});
  } else if (!wanted.beats_to_read.empty()) {
    issue(node, {.kind = Call::Kind::kReadBeats, .ids = std::move(wanted.beats_to_read)});
  } else if (wanted.change) {
    issue(node, {.kind = Call::Kind::kChange, .change = *std::move(wanted.change)});
  } else if (machine.update().kind == rendezvous::RendezvousUpdate::Kind::kEnded) {
    scheduler_.add(global(node, wanted.wake), Kind::kDrive, node.index);
  } else {
    issue(node, {.kind = Call::Kind::kWatch, .until = global(node, wanted.wake), .known = node.revision});
  }
}

void World::issue(SimNode& node, Call call) {
  const uint32_t index = static_cast<uint32_t>(calls_.size());
  call.node = node.index;
  node.call = index;
  const Time timeout = call.kind == Call::Kind::kWatch ? std::max(call.until - now_, Time{0}) : 0;
  if (call.kind == Call::Kind::kWatch) scheduler_.add(call.until, Kind::kSlice, node.index, index);
  scheduler_.add(now_ + timeout + kCallTimeout, Kind::kGiveUp, node.index, index);
  calls_.push_back(std::move(call));
  if (!calm_ && random_.per_mille(scenario_.lose_requests)) return;
  scheduler_.add(now_ + some_delay(), Kind::kRequest, 0, index);
}

void World::serve(uint32_t index) {
  Call& call = calls_[index];
  SimNode& node = *nodes_[call.node];
  if (cut(node)) return;
  switch (call.kind) {
    case Call::Kind::kGet:
      call.answer = state_;
      break;
    case Call::Kind::kWatch:
      if (revision_ == call.known) {
        watching_.push_back(index);
        return;
      }
      call.answer = state_;
      break;
    case Call::Kind::kBeat:
      if (call.beat.value) {
        beats_[call.beat.id] = *call.beat.value;
      } else {
        beats_.erase(call.beat.id);
      }
      break;
    case Call::Kind::kReadBeats:
      for (const std::string& id : call.ids) {
        const auto beat = beats_.find(id);
        call.beats.push_back(beat == beats_.end() ? std::nullopt : std::optional(beat->second));
      }
      break;
    case Call::Kind::kChange:
      if (state_.value_or("") == call.change.expected) {
        if (node.call != index) cover(Coverage::What::kChangeGivenUpTookEffect);
        const std::string desired = call.change.desired;  // A copy: calls_ may grow.
        write(node, desired);
      } else {
        cover(Coverage::What::kChangeLostRace);
      }
      calls_[index].answer = state_.value_or(calls_[index].change.expected);
      break;
  }
  answer(index);
}

void World::answer(uint32_t index) {
  calls_[index].revision = revision_;
  if (!calm_ && random_.per_mille(scenario_.lose_answers)) {
    if (calls_[index].kind == Call::Kind::kChange && calls_[index].answer == calls_[index].change.desired) {
      cover(Coverage::What::kAnswerLost);
    }
    return;
  }
  scheduler_.add(now_ + some_delay(), Kind::kAnswer, calls_[index].node, index);
}

void World::receive(SimNode& node, uint32_t index) {
  if (node.call != index || cut(node)) return;
  const Call call = std::exchange(calls_[index], Call{.node = node.index});
  node.call = kNoCall;
  node.reached_ever = true;
  node.failing_since.reset();
  const absl::Time now = local(node);
  const auto read = [&](const std::optional<std::string>& bytes) {
    node.known = true;
    node.revision = call.revision;
    node.machine->read(bytes ? std::optional<absl::string_view>(*bytes) : std::nullopt, now);
  };
  switch (call.kind) {
    case Call::Kind::kGet:
    case Call::Kind::kWatch:
      read(call.answer);
      break;
    case Call::Kind::kBeat:
      node.machine->on_beat_written(now);
      break;
    case Call::Kind::kReadBeats:
      node.machine->on_beats_read(call.beats, now);
      break;
    case Call::Kind::kChange:
      if (call.answer == call.change.expected) {
        node.known = false;
      } else {
        read(call.answer);
      }
      break;
  }
  drive(node);
}

void World::give_up(SimNode& node, uint32_t index, bool failed) {
  if (node.call != index) return;
  node.call = kNoCall;
  if (!failed) return drive(node);
  node.known = false;
  if (!node.failing_since) node.failing_since = now_;
  if (node.reached_ever && now_ - *node.failing_since >= kStoreTimeout) {
    node.machine->on_store_lost(absl::UnavailableError("store lost"));
  }
  scheduler_.add(now_ + kRetryInterval, Kind::kDrive, node.index);
}

void World::write(SimNode& node, const std::string& bytes) {
  const absl::StatusOr<rendezvous::Record> record = rendezvous::decode(bytes);
  if (!record.ok()) return violate(absl::StrCat(node.name(), " writes ", record.status().message()));
  check_write(node, *record);
  state_ = bytes;
  ++revision_;
  record_ = *record;
  for (const uint32_t index : std::exchange(watching_, {})) {
    Call& call = calls_[index];
    if (nodes_[call.node]->call != index || cut(*nodes_[call.node])) continue;
    call.answer = state_;
    answer(index);
  }
}

Time World::some_delay() {
  if (calm_) return random_.between(kMillisecond, 10 * kMillisecond);
  return random_.between(kMillisecond,
                         random_.per_mille(scenario_.long_delays) ? scenario_.long_delay : scenario_.delay);
}

}  // namespace gradwire::rendezvous_simulation
