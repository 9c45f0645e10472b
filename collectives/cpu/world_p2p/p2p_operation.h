#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/collectives/cpu/bytes/span.h"
#include "gradwire/collectives/cpu/world_p2p/world_p2p.h"

namespace gradwire::collectives::cpu {

// The messages of one collective among members of a world. Members are identified by their position. The
// buffers are used until the operation has ended, which is after finish(), or after drain() if the channel
// was aborted. Not thread-safe.
class P2pOperation {
 public:
  // Memory that successive operations reuse, so that it need not be allocated each time.
  struct Scratch {
    std::unique_ptr<char[]> memory;
    std::size_t size = 0;
  };

  P2pOperation(WorldP2p& p2p, const std::vector<int>& ranks, int position, uint64_t channel, int64_t tag,
               absl::Time deadline, Scratch& scratch)
      : p2p_(p2p),
        ranks_(ranks),
        position_(position),
        channel_(channel),
        tag_(tag),
        deadline_(deadline),
        scratch_(scratch) {}

  int rank() const { return position_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  // The position `by` places after this member's, cyclically; negative: before.
  int shifted(int by) const { return ((position_ + by) % size() + size()) % size(); }
  // from_root(): this member's offset in the order that begins with the root. at(): the position of an
  // offset.
  int from_root(int root) const { return (position_ - root + size()) % size(); }
  int at(int offset, int root) const { return (offset + root) % size(); }

  // Memory that is valid until the operation ends. Call it at most once.
  char* scratch(std::size_t bytes);

  // Start a send or a receive, and return its number for wait_sent() or wait_received(). Messages between two
  // members arrive in order.
  std::size_t send(int to, Span data);
  std::size_t receive(int from, Span data);
  // The errors are those of WorldP2p and name the rank.
  absl::Status wait_sent(std::size_t number);
  absl::Status wait_received(std::size_t number);
  absl::Status receive_now(int from, Span data) { return wait_received(receive(from, data)); }
  absl::Status send_now(int to, Span data) { return wait_sent(send(to, data)); }

  // Waits until everything has been sent and received.
  absl::Status finish();
  // Waits until all sends and receives have ended, with or without errors.
  void drain();

  // A pipeline around the ring of all members, in `steps` steps of `segments` pieces each. In each step a
  // member sends send_from() to the next member, and receives receive_into() from the one before. received()
  // then processes a piece before it is sent in the next step. Before a piece is received in step s, the
  // piece with the same number that was sent in step overwrites(s) must have been sent, if overwrites(s) is
  // not negative.
  struct Ring {
    int steps;
    int segments;
    absl::FunctionRef<Span(int step, int segment)> send_from;
    absl::FunctionRef<Span(int step, int segment)> receive_into;
    absl::FunctionRef<void(int step, int segment)> received;
    absl::FunctionRef<int(int step)> overwrites;
  };
  // Maximum number of receives posted ahead: piece i may use the buffer of piece i - kAhead.
  static constexpr int kAhead = 4;
  absl::Status run_ring(const Ring& ring);

 private:
  WorldP2p& p2p_;
  const std::vector<int>& ranks_;
  const int position_;
  const uint64_t channel_;
  const int64_t tag_;
  const absl::Time deadline_;
  Scratch& scratch_;
  std::vector<Future<void>> sends_;
  std::vector<Future<int>> receives_;
};

// Returns piece `index` of `pieces` nearly equal ones, each of whole elements.
inline Span piece_of(Span data, int index, int pieces, std::size_t element_size) {
  const std::size_t count = data.size / element_size;
  const auto all = static_cast<std::size_t>(pieces);
  const auto begin = [&](std::size_t i) { return (count / all * i + count % all * i / all) * element_size; };
  const auto at = static_cast<std::size_t>(index);
  return data.part(begin(at), begin(at + 1) - begin(at));
}

// Returns the number of pieces of about `piece` bytes; at least 1.
inline int pieces_of(std::size_t bytes, std::size_t piece) {
  return bytes == 0 ? 1 : static_cast<int>((bytes - 1) / piece + 1);
}

}  // namespace gradwire::collectives::cpu
