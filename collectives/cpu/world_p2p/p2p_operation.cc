#include "gradwire/collectives/cpu/world_p2p/p2p_operation.h"

#include <algorithm>

#include "gradwire/base/error.h"

namespace gradwire::collectives::cpu {

std::size_t P2pOperation::send(int to, Span data) {
  sends_.push_back(p2p_.send(ranks_[static_cast<std::size_t>(to)], channel_, tag_, data, deadline_));
  return sends_.size() - 1;
}

std::size_t P2pOperation::receive(int from, Span data) {
  receives_.push_back(p2p_.receive(ranks_[static_cast<std::size_t>(from)], channel_, tag_, data, deadline_));
  return receives_.size() - 1;
}

char* P2pOperation::scratch(std::size_t bytes) {
  if (bytes > scratch_.size) {
    // Frees the old memory first, so that both are never allocated at the same time.
    scratch_.memory = nullptr;
    scratch_.memory = std::make_unique_for_overwrite<char[]>(bytes);
    scratch_.size = bytes;
  }
  return scratch_.memory.get();
}

absl::Status P2pOperation::wait_sent(std::size_t number) { return sends_[number].result(); }

absl::Status P2pOperation::wait_received(std::size_t number) { return receives_[number].result().status(); }

absl::Status P2pOperation::finish() {
  for (std::size_t i = 0; i < receives_.size(); ++i) GRADWIRE_RETURN_IF_ERROR(wait_received(i));
  for (std::size_t i = 0; i < sends_.size(); ++i) GRADWIRE_RETURN_IF_ERROR(wait_sent(i));
  return absl::OkStatus();
}

void P2pOperation::drain() {
  for (const Future<int>& receive : receives_) (void)receive.result();
  for (const Future<void>& send : sends_) (void)send.result();
}

// Piece i is segment i % segments of step i / segments. It is sent when piece i - segments has been received,
// and its receive is posted when piece i - ahead has been received. A member waits only for pieces with lower
// numbers, so the members cannot deadlock.
absl::Status P2pOperation::run_ring(const Ring& ring) {
  const int size = static_cast<int>(ranks_.size());
  const int next = (position_ + 1) % size;
  const int before = (position_ + size - 1) % size;
  const int total = ring.steps * ring.segments;
  const int ahead = std::min(kAhead, ring.segments);
  std::vector<std::size_t> sent(static_cast<std::size_t>(total));
  std::vector<std::size_t> received(static_cast<std::size_t>(total));
  const auto post = [&](int piece) -> absl::Status {
    const int step = piece / ring.segments;
    const int segment = piece % ring.segments;
    // The memory may still be in use by a send of an earlier step.
    if (const int overwritten = ring.overwrites(step); overwritten >= 0)
      GRADWIRE_RETURN_IF_ERROR(
          wait_sent(sent[static_cast<std::size_t>(overwritten * ring.segments + segment)]));
    received[static_cast<std::size_t>(piece)] = receive(before, ring.receive_into(step, segment));
    return absl::OkStatus();
  };
  const auto begin_send = [&](int piece) {
    sent[static_cast<std::size_t>(piece)] =
        send(next, ring.send_from(piece / ring.segments, piece % ring.segments));
  };
  for (int piece = 0; piece < std::min(ahead, total); ++piece) GRADWIRE_RETURN_IF_ERROR(post(piece));
  for (int piece = 0; piece < std::min(ring.segments, total); ++piece) begin_send(piece);
  for (int piece = 0; piece < total; ++piece) {
    GRADWIRE_RETURN_IF_ERROR(wait_received(received[static_cast<std::size_t>(piece)]));
    ring.received(piece / ring.segments, piece % ring.segments);
    if (piece + ring.segments < total) begin_send(piece + ring.segments);
    if (piece + ahead < total) GRADWIRE_RETURN_IF_ERROR(post(piece + ahead));
  }
  return absl::OkStatus();
}

}  // namespace gradwire::collectives::cpu
