#include "gradwire/collectives/cpu/shm_p2p/shm_carrier.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/log.h"
#include "gradwire/collectives/cpu/shm_p2p/doorbells.h"

namespace gradwire::collectives::cpu {
namespace {

constexpr std::size_t kPage = 4096;
static_assert(sizeof(Doorbell) <= kPage);
// Records of one ring before the others get their turn.
constexpr int kRecordsPerTurn = 64;
// How often the dead are looked for.
constexpr absl::Duration kTendEvery = absl::Milliseconds(10);

// For the payload of a ring. Measured with two ranks on two cores: 256 KiB cost long messages up to twice the
// time of a mebibyte. With many members rings must not fill the address space.
std::size_t data_bytes(int size) {
  if (size <= 4) return std::size_t{1} << 20;
  return std::size_t{size <= 16 ? 256u : 64u} << 10;
}

}  // namespace

std::size_t ShmCarrier::slot_bytes(int size) {
  const std::size_t bytes = kPage + static_cast<std::size_t>(size) * P2pRing::bytes(data_bytes(size));
  return (bytes + 2 * kPage - 1) / (2 * kPage) * kPage;
}

char* ShmCarrier::ring_memory(const HostMemory& memory, int from, int to) {
  return memory.slot(from, 0) + kPage +
         static_cast<std::size_t>(to) * P2pRing::bytes(data_bytes(memory.size()));
}

P2pRing ShmCarrier::ring(const HostMemory& memory, int from, int to) {
  return {ring_memory(memory, from, to), data_bytes(memory.size())};
}

ShmCarrier::ShmCarrier(const Endpoint::Options& options, const HostMemory& memory)
    : options_(options), memory_(memory), endpoint_(options), ports_(static_cast<std::size_t>(options.size)) {
  for (int rank = 0; rank < options_.size; ++rank) {
    if (rank == options_.rank) continue;
    ports_[static_cast<std::size_t>(rank)].emplace(endpoint_, rank, ring(memory, options_.rank, rank),
                                                   ring(memory, rank, options_.rank));
  }
}

void ShmCarrier::settle(Effects effects, DeferredEffects& deferred) {
  while (!effects.empty()) {
    Effects more;
    for (Effect& effect : effects) perform(effect, more, deferred);
    effects = std::move(more);
  }
}

void ShmCarrier::perform(Effect& effect, Effects& more, DeferredEffects& deferred) {
  using Kind = Effect::Kind;
  switch (effect.kind) {
    case Kind::kDeliver:
      take_payload(effect);
      deferred.ended.push_back(std::move(effect));
      break;
    case Kind::kEndReceive:
    case Kind::kEndSend:
      deferred.ended.push_back(std::move(effect));
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
      change(effect.rank, [&](ShmPort& port) { port.retract(effect.send, more); });
      break;
    case Kind::kWake:
      flush(effect.rank, deferred);
      break;
  }
}

void ShmCarrier::reply(const Effect& effect, Effects& more) {
  if (endpoint_.sends().outboxes().answers(effect.rank) > 2 * kMaxPendingRts) {
    lose(effect.rank, absl::InvalidArgumentError("announces messages, and reads no answers"), more);
    return;
  }
  endpoint_.sends().outboxes().push(effect.rank, {effect.frame, nullptr});
  more.push_back({.kind = Effect::Kind::kWake, .rank = effect.rank});
}

template <typename Change>
void ShmCarrier::change(int rank, Change&& change) {
  ShmPort& port = this->port(rank);
  partial_ -= port.writing();
  change(port);
  partial_ += port.writing();
}

bool ShmCarrier::flush(int rank, DeferredEffects& deferred) {
  if (endpoint_.matcher().is_lost(rank)) return false;
  bool wrote = false;
  Effects effects;
  change(rank, [&](ShmPort& port) { wrote = port.flush(effects); });
  if (port(rank).out().spoilt())
    lose(rank, absl::InvalidArgumentError("says that it has read what was not written"), effects);
  settle(std::move(effects), deferred);
  if (endpoint_.matcher().is_lost(rank)) return wrote;
  // The reader may have made room before it could know that it is wanted.
  const bool full = port(rank).has_more();
  if (port(rank).out().want_room(full) && full && flush(rank, deferred)) return true;
  if (full) deferred.full.push_back(rank);
  if (wrote) deferred.written.push_back(rank);
  return wrote;
}

bool ShmCarrier::read(int rank, DeferredEffects& deferred) {
  int records = 0;
  for (; records < kRecordsPerTurn && !endpoint_.matcher().is_lost(rank) && port(rank).has_record();
       ++records) {
    Effects effects;
    bool wake = false;
    const absl::Status status = port(rank).read(effects, wake);
    if (!status.ok()) {
      log(LogLevel::kWarning, "rank ", options_.rank, " reads no more from rank ", rank, ": ",
          status.message());
      lose(rank, absl::InvalidArgumentError(absl::StrCat("broke the protocol: ", status.message())), effects);
    }
    settle(std::move(effects), deferred);
    if (wake) deferred.written.push_back(rank);
  }
  if (records == kRecordsPerTurn) more_ = true;
  return records > 0;
}

bool ShmCarrier::poll(DeferredEffects& deferred) {
  bool any = false;
  more_ = false;
  for (int rank = 0; rank < options_.size; ++rank) {
    if (!is_other(rank)) continue;
    if (port(rank).has_record() && read(rank, deferred)) any = true;
    if (port(rank).has_more() && flush(rank, deferred)) any = true;
  }
  return any;
}

void ShmCarrier::lose(int rank, const absl::Status& reason, Effects& effects) {
  if (endpoint_.matcher().is_lost(rank)) return;
  endpoint_.lose(rank, reason, effects);
  change(rank, [&](ShmPort& port) {
    for (const SendPtr& send : endpoint_.sends().select([&](const Send& each) { return each.peer == rank; }))
      endpoint_.sends().released(send, effects);
    port.clear();
  });
}

void ShmCarrier::expire(absl::Time now, DeferredEffects& deferred) {
  if (now < std::min(expire_at_, endpoint_.next_deadline())) return;
  expire_at_ = now + kTendEvery;
  Effects effects;
  endpoint_.expire(now, effects);
  settle(std::move(effects), deferred);
  for (int rank = 0; rank < options_.size; ++rank) {
    if (!is_other(rank) || !memory_.gone(rank)) continue;
    // What it wrote before it went; others could still write there: once around the ring is all there can be.
    for (std::size_t i = 0; i < kRingCells && read(rank, deferred); ++i) {
    }
    const bool left = memory_.member(rank).left.load() != 0;
    Effects lost;
    lose(rank, absl::UnavailableError(left ? "has left" : "is gone: its process has ended"), lost);
    settle(std::move(lost), deferred);
  }
}

bool ShmCarrier::is_full() const {
  return std::any_of(ports_.begin(), ports_.end(), [](const std::optional<ShmPort>& each) {
    return each.has_value() && each->in().is_full();
  });
}

absl::InlinedVector<P2pRingReader::Probe, 8> ShmCarrier::probes() {
  absl::InlinedVector<P2pRingReader::Probe, 8> looks;
  for (int rank = 0; rank < options_.size; ++rank) {
    if (is_other(rank)) looks.push_back(port(rank).in().probe());
  }
  return looks;
}

}  // namespace gradwire::collectives::cpu
