#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/future.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/collectives/cpu/span.h"
#include "gradwire/store/store.h"

namespace gradwire::collectives::cpu {

// Point to point between ranks that all share one host: the meaning of Mesh's send and receive (source, tag,
// no overtaking, what waits is bounded), by way of memory.
//
// Each rank has a ring (ring.h) to each other rank, and everything that it says to that rank goes there, in
// order. A short message is one record. A longer one, up to eager_bytes, goes in pieces at once. A still
// longer one is announced, and goes in pieces when a receive asks for it. Incoming messages are matched to
// receives by an Endpoint (p2p/endpoint.h), which bounds unexpected messages by a window for each sender. A
// receive whose message is at the head of the ring bypasses it when nothing else is under way.
//
// A thread that waits drives: it polls the rings, copies, and writes what waits for room. Where no thread
// waits, one of the group does; it sleeps until it is rung for. A writer rings when the reader's rank has
// said that it sleeps, or when a ring is full. One lock guards all of it. Data is copied while it is held, in
// pieces, so that an operation that has ended does not touch the caller's memory any more.
//
// Thread-safe. Errors as Mesh's; ranks are those of the group.
class ShmP2p {
 public:
  struct Options {
    int rank = 0;
    int size = 1;
    // Where the members find the memory; of the rings alone.
    std::shared_ptr<store::Store> store;
    absl::Duration timeout = absl::Minutes(30);
    std::size_t eager_bytes = std::size_t{64} << 10;
    // Where continuations run.
    std::shared_ptr<Executor> executor;
  };
  // Returns when all members have joined. Unavailable when memory cannot be shared; the store's errors.
  //
  // Who lets go of the rings leaves: others hear of it, and what is under way here fails with Cancelled.
  // Waits for the group's thread, unless a continuation leaves on that thread itself.
  static absl::StatusOr<std::shared_ptr<ShmP2p>> join(const Options& options);
  virtual ~ShmP2p() = default;

  // As Mesh's.
  virtual Future<void> send(int dst, int64_t tag, Span data, absl::Time deadline) = 0;
  virtual Future<int> receive(int src, int64_t tag, Span data, absl::Time deadline) = 0;
  // The same where it can be done at once, or takes some microseconds; none: nothing has happened.
  virtual std::optional<absl::Status> try_send(int dst, int64_t tag, Span data) = 0;
  virtual std::optional<absl::StatusOr<int>> try_receive(int src, int64_t tag, Span data) = 0;

  // Everything under way, and everything that comes, fails here with this reason. The first reason stays.
  virtual void abort(const absl::Status& reason) = 0;
};

}  // namespace gradwire::collectives::cpu
