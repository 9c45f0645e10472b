// Performs the effects of an Endpoint on the rings of one rank: writes outboxes, reads records, and loses
// ranks that break the protocol or are gone.

#include "gradwire/collectives/cpu/shm_p2p/shm_carrier.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/log/log.h"
#include "gradwire/collectives/cpu/shm_p2p/doorbells.h"

namespace gradwire::collectives::cpu {
namespace {

constexpr std::size_t kPage = 4096;
static_assert(sizeof(Doorbell) <= kPage);
// Number of records read from one ring before the other rings are read.
constexpr int kMaxRecordsPerRead = 64;
// How often expire() checks for ranks that are gone.
constexpr absl::Duration kExpireEvery = absl::Milliseconds(10);

// Payload memory of a ring. Measured with two ranks on two cores: with 256 KiB, long messages took up to
// twice as long as with 1 MiB. With many members the rings must not fill the address space.
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

// Performing an effect may append others to `more`. They are performed in the next round, so effects keep
// their order.
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
    case Kind::kCts:
      // An earlier effect of the same list may have lost the rank and ended the receive.
      if (endpoint_.matcher().is_lost(effect.rank) || !endpoint_.contains(*effect.receive)) break;
      if (port(effect.rank).set_receive(effect.receive, effect.frame.id, more)) reply(effect, more);
      break;
    case Kind::kReply:
      // A message that began with kBegin is not refused: its sender sends it without waiting for an answer.
      if (effect.frame.kind == FrameKind::kNack && !port(effect.rank).discard(effect.frame.id)) break;
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

// A hostile rank could announce messages and never read the answers, and the outbox would grow without limit.
// A rank that keeps its limit of pending RTS never has so many answers.
void ShmCarrier::reply(const Effect& effect, Effects& more) {
  if (endpoint_.sends().outboxes().control_frames(effect.rank) > 2 * kMaxPendingRts) {
    lose(effect.rank, absl::InvalidArgumentError("sends RTS frames but does not read the answers"), more);
    return;
  }
  endpoint_.sends().outboxes().push(effect.rank, {effect.frame, nullptr});
  more.push_back({.kind = Effect::Kind::kWake, .rank = effect.rank});
}

template <typename Change>
void ShmCarrier::change(int rank, Change&& change) {
  ShmPort& port = this->port(rank);
  partial_writes_ -= port.writing();
  change(port);
  partial_writes_ += port.writing();
}

// 1. Write until the outbox is empty or the ring is full.
// 2. A reader that reports more than was written is lost.
// 3. If the ring is full, ask the reader for a wake-up (want_room). Then write once more, because the reader
//    may have made room just before it could see the request. The second call does not ask again, so the
//    recursion ends.
// 4. Note which doorbells to signal after the lock has been released.
bool ShmCarrier::flush(int rank, DeferredEffects& deferred) {
  if (endpoint_.matcher().is_lost(rank)) return false;
  bool wrote = false;
  Effects effects;
  change(rank, [&](ShmPort& port) { wrote = port.flush(effects); });
  if (port(rank).out().corrupt())
    lose(rank,
         absl::InvalidArgumentError(
             "broke the protocol: it reports that it has read records that were not written"),
         effects);
  settle(std::move(effects), deferred);
  if (endpoint_.matcher().is_lost(rank)) return wrote;
  // The reader may have made room before it could see that this rank wants to be woken.
  const bool full = port(rank).has_more();
  if (port(rank).out().want_room(full) && full && flush(rank, deferred)) return true;
  if (full) deferred.full.push_back(rank);
  if (wrote) deferred.written.push_back(rank);
  return wrote;
}

// The loop checks is_lost() before each record: performing the effects of one record may lose the rank. A
// rank that writes as fast as this one reads must not keep the lock and delay the others, so the number of
// records is limited. has_more() reports that some may be left.
bool ShmCarrier::read(int rank, DeferredEffects& deferred) {
  int records = 0;
  for (; records < kMaxRecordsPerRead && !endpoint_.matcher().is_lost(rank) && port(rank).has_record();
       ++records) {
    Effects effects;
    bool wake = false;
    const absl::Status status = port(rank).read(effects, wake);
    if (!status.ok()) {
      log(LogLevel::kWarning, "rank ", options_.rank, " stops reading from rank ", rank,
          ", which broke the protocol: ", status.message());
      lose(rank, absl::InvalidArgumentError(absl::StrCat("broke the protocol: ", status.message())), effects);
    }
    settle(std::move(effects), deferred);
    if (wake) deferred.written.push_back(rank);
  }
  if (records == kMaxRecordsPerRead) has_more_ = true;
  return records > 0;
}

// Reading comes before writing: the answers to what was read leave in the same poll.
bool ShmCarrier::poll(DeferredEffects& deferred) {
  bool any = false;
  has_more_ = false;
  for (int rank = 0; rank < options_.size; ++rank) {
    if (!is_other(rank)) continue;
    if (port(rank).has_record() && read(rank, deferred)) any = true;
    if (port(rank).has_more() && flush(rank, deferred)) any = true;
  }
  return any;
}

// The Endpoint leaves a send that the carrier is using to the carrier. Writing to the ring ends here, so
// those sends are released: endpoint_.lose() has given each of them its error.
void ShmCarrier::lose(int rank, const absl::Status& reason, Effects& effects) {
  if (endpoint_.matcher().is_lost(rank)) return;
  endpoint_.lose(rank, reason, effects);
  change(rank, [&](ShmPort& port) {
    for (const SendPtr& send : endpoint_.sends().select([&](const Send& each) { return each.peer == rank; }))
      endpoint_.sends().released(send, effects);
    port.reset();
  });
}

void ShmCarrier::expire(absl::Time now, DeferredEffects& deferred) {
  if (now < std::min(expire_at_, endpoint_.next_deadline())) return;
  expire_at_ = now + kExpireEvery;
  Effects effects;
  endpoint_.expire(now, effects);
  settle(std::move(effects), deferred);
  for (int rank = 0; rank < options_.size; ++rank) {
    if (!is_other(rank) || !memory_.gone(rank)) continue;
    // Read what the rank wrote before it was gone. Another process could still write to its ring, so the loop
    // is bounded by the number of cells.
    for (std::size_t i = 0; i < kRingCells && read(rank, deferred); ++i) {
    }
    const bool left = memory_.member(rank).left.load() != 0;
    Effects lost;
    lose(rank, absl::UnavailableError(left ? "has left" : "is lost: its process has ended"), lost);
    settle(std::move(lost), deferred);
  }
}

bool ShmCarrier::is_full() const {
  return std::any_of(ports_.begin(), ports_.end(), [](const std::optional<ShmPort>& each) {
    return each.has_value() && each->in().is_full();
  });
}

absl::InlinedVector<P2pRingReader::Probe, 8> ShmCarrier::probes() {
  absl::InlinedVector<P2pRingReader::Probe, 8> probes;
  for (int rank = 0; rank < options_.size; ++rank) {
    if (is_other(rank)) probes.push_back(port(rank).in().probe());
  }
  return probes;
}

}  // namespace gradwire::collectives::cpu
