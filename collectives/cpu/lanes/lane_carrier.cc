#include "gradwire/collectives/cpu/lanes/lane_carrier.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/log.h"
#include "gradwire/collectives/cpu/lanes/lane_bells.h"

namespace gradwire::collectives::cpu {
namespace {

constexpr std::size_t kPage = 4096;
static_assert(sizeof(LaneBell) <= kPage);
// Records of one lane before the others get their turn.
constexpr int kRecordsPerTurn = 64;
// How often the dead are looked for.
constexpr absl::Duration kTendEvery = absl::Milliseconds(10);

// For the payload of a lane. Measured with two ranks on two cores: 256 KiB cost long messages up to twice the
// time of a mebibyte. With many members lanes must not fill the address space.
std::size_t data_bytes(int size) {
  if (size <= 4) return std::size_t{1} << 20;
  return std::size_t{size <= 16 ? 256u : 64u} << 10;
}

}  // namespace

std::size_t LaneCarrier::slot_bytes(int size) {
  const std::size_t bytes = kPage + static_cast<std::size_t>(size) * Lane::bytes(data_bytes(size));
  return (bytes + 2 * kPage - 1) / (2 * kPage) * kPage;
}

char* LaneCarrier::lane_memory(const HostMemory& memory, int from, int to) {
  return memory.slot(from, 0) + kPage + static_cast<std::size_t>(to) * Lane::bytes(data_bytes(memory.size()));
}

Lane LaneCarrier::lane(const HostMemory& memory, int from, int to) {
  return {lane_memory(memory, from, to), data_bytes(memory.size())};
}

LaneCarrier::LaneCarrier(const Endpoint::Options& options, const HostMemory& memory)
    : options_(options), memory_(memory), endpoint_(options), ports_(static_cast<std::size_t>(options.size)) {
  for (int rank = 0; rank < options_.size; ++rank) {
    if (rank == options_.rank) continue;
    ports_[static_cast<std::size_t>(rank)].emplace(endpoint_, rank, lane(memory, options_.rank, rank),
                                                   lane(memory, rank, options_.rank));
  }
}

void LaneCarrier::settle(Effects effects, LaneTodos& todos) {
  while (!effects.empty()) {
    Effects more;
    for (Effect& effect : effects) perform(effect, more, todos);
    effects = std::move(more);
  }
}

void LaneCarrier::perform(Effect& effect, Effects& more, LaneTodos& todos) {
  using Kind = Effect::Kind;
  switch (effect.kind) {
    case Kind::kDeliver:
      take_payload(effect);
      todos.ended.push_back(std::move(effect));
      break;
    case Kind::kEndReceive:
    case Kind::kEndSend:
      todos.ended.push_back(std::move(effect));
      break;
    case Kind::kClear:
      if (endpoint_.matcher().is_lost(effect.rank) || !endpoint_.contains(*effect.receive)) break;
      if (port(effect.rank).clear(effect.receive, effect.frame.id, more)) reply(effect, more);
      break;
    case Kind::kReply:
      if (effect.frame.kind == FrameKind::kNack && !port(effect.rank).drop(effect.frame.id)) break;
      reply(effect, more);
      break;
    case Kind::kRetract:
      change(effect.rank, [&](LanePort& port) { port.retract(effect.send, more); });
      break;
    case Kind::kWake:
      flush(effect.rank, todos);
      break;
  }
}

void LaneCarrier::reply(const Effect& effect, Effects& more) {
  if (endpoint_.sends().outboxes().answers(effect.rank) > 2 * kMaxAnnounced) {
    lose(effect.rank, absl::InvalidArgumentError("announces messages, and reads no answers"), more);
    return;
  }
  endpoint_.sends().outboxes().push(effect.rank, {effect.frame, nullptr});
  more.push_back({.kind = Effect::Kind::kWake, .rank = effect.rank});
}

template <typename Change>
void LaneCarrier::change(int rank, Change&& change) {
  LanePort& port = this->port(rank);
  partial_ -= port.writing();
  change(port);
  partial_ += port.writing();
}

bool LaneCarrier::flush(int rank, LaneTodos& todos) {
  if (endpoint_.matcher().is_lost(rank)) return false;
  bool wrote = false;
  Effects effects;
  change(rank, [&](LanePort& port) { wrote = port.flush(effects); });
  if (port(rank).out().spoilt())
    lose(rank, absl::InvalidArgumentError("says that it has read what was not written"), effects);
  settle(std::move(effects), todos);
  if (endpoint_.matcher().is_lost(rank)) return wrote;
  // The reader may have made room before it could know that it is wanted.
  const bool full = port(rank).has_more();
  if (port(rank).out().want_room(full) && full && flush(rank, todos)) return true;
  if (full) todos.full.push_back(rank);
  if (wrote) todos.written.push_back(rank);
  return wrote;
}

bool LaneCarrier::read(int rank, LaneTodos& todos) {
  int records = 0;
  for (; records < kRecordsPerTurn && !endpoint_.matcher().is_lost(rank) && port(rank).has_news();
       ++records) {
    Effects effects;
    bool wake = false;
    const absl::Status status = port(rank).read(effects, wake);
    if (!status.ok()) {
      log(LogLevel::kWarning, "rank ", options_.rank, " reads no more from rank ", rank, ": ",
          status.message());
      lose(rank, absl::InvalidArgumentError(absl::StrCat("broke the protocol: ", status.message())), effects);
    }
    settle(std::move(effects), todos);
    if (wake) todos.written.push_back(rank);
  }
  if (records == kRecordsPerTurn) more_ = true;
  return records > 0;
}

bool LaneCarrier::poll(LaneTodos& todos) {
  bool any = false;
  more_ = false;
  for (int rank = 0; rank < options_.size; ++rank) {
    if (!is_other(rank)) continue;
    if (port(rank).has_news() && read(rank, todos)) any = true;
    if (port(rank).has_more() && flush(rank, todos)) any = true;
  }
  return any;
}

void LaneCarrier::lose(int rank, const absl::Status& reason, Effects& effects) {
  if (endpoint_.matcher().is_lost(rank)) return;
  endpoint_.lose(rank, reason, effects);
  change(rank, [&](LanePort& port) {
    for (const SendPtr& send : endpoint_.sends().select([&](const Send& each) { return each.peer == rank; }))
      endpoint_.sends().released(send, effects);
    port.clear();
  });
}

void LaneCarrier::tend(absl::Time now, LaneTodos& todos) {
  if (now < std::min(tend_at_, endpoint_.next_deadline())) return;
  tend_at_ = now + kTendEvery;
  Effects effects;
  endpoint_.expire(now, effects);
  settle(std::move(effects), todos);
  for (int rank = 0; rank < options_.size; ++rank) {
    if (!is_other(rank) || !memory_.gone(rank)) continue;
    // What it wrote before it went; others could still write there: once around the lane is all there can be.
    for (std::size_t i = 0; i < kLaneCells && read(rank, todos); ++i) {
    }
    const bool left = memory_.member(rank).left.load() != 0;
    Effects lost;
    lose(rank, absl::UnavailableError(left ? "has left" : "is gone: its process has ended"), lost);
    settle(std::move(lost), todos);
  }
}

bool LaneCarrier::is_full() const {
  return std::any_of(ports_.begin(), ports_.end(), [](const std::optional<LanePort>& each) {
    return each.has_value() && each->in().is_full();
  });
}

absl::InlinedVector<LaneReader::Look, 8> LaneCarrier::looks() {
  absl::InlinedVector<LaneReader::Look, 8> looks;
  for (int rank = 0; rank < options_.size; ++rank) {
    if (is_other(rank)) looks.push_back(port(rank).in().look());
  }
  return looks;
}

}  // namespace gradwire::collectives::cpu
