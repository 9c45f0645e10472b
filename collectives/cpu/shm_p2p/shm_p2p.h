#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/collectives/cpu/bytes/span.h"
#include "gradwire/store/interface/store.h"

namespace gradwire::collectives::cpu {

// Point-to-point messages between ranks that all share one host, through memory. The semantics are those of
// WorldP2p's send and receive: source, tag, no overtaking, bounded waiting messages.
//
// Each rank has a ring (p2p_ring.h) to each other rank, and all its records to that rank go through it, in
// order. A short message is one record. A longer one, up to eager_bytes, is sent at once in pieces. A still
// longer one uses the rendezvous protocol: it is announced, and sent in pieces when a receive has been found
// for it. Incoming messages are matched to receives by an Endpoint (p2p/endpoint.h), which bounds unexpected
// messages by a window for each sender. A receive whose message is at the head of the ring bypasses the
// Endpoint if nothing else is pending.
//
// A thread that waits drives the rings: it polls them, copies data, and writes whatever waits for room. If no
// thread waits, the group's thread does that; it sleeps until its doorbell is signalled. A writer signals the
// doorbell if the reader's state asks for it (Doorbell), or if a ring is full. One lock guards the whole
// state of a rank. Data is copied in pieces while the lock is held, so that an operation that has ended does
// not use the caller's memory any more.
//
// Thread-safe. Errors as in WorldP2p; ranks are those of the group. ShmEndpoint is the only implementation;
// the interface keeps it out of this header.
class ShmP2p {
 public:
  struct Options {
    int rank = 0;
    int size = 1;
    // The store through which the members find the memory; used for nothing else.
    std::shared_ptr<store::Store> store;
    absl::Duration timeout = absl::Minutes(30);
    std::size_t eager_bytes = std::size_t{64} << 10;
    // Runs the continuations of futures.
    std::shared_ptr<Executor> executor;
  };
  // Returns when all members have joined. Unavailable if memory cannot be shared; the errors of the store.
  //
  // A rank leaves when its last reference is released: the other ranks are informed, and its operations in
  // progress fail with Cancelled. That waits for the group's thread, unless a continuation leaves on that
  // thread itself.
  static absl::StatusOr<std::shared_ptr<ShmP2p>> join(const Options& options);
  virtual ~ShmP2p() = default;

  // As in WorldP2p.
  virtual Future<void> send(int dst, int64_t tag, Span data, absl::Time deadline) = 0;
  virtual Future<int> receive(int src, int64_t tag, Span data, absl::Time deadline) = 0;
  // Like send() and receive(), if the operation can complete at once or within some microseconds. Otherwise
  // returns nullopt, and nothing has happened.
  virtual std::optional<absl::Status> try_send(int dst, int64_t tag, Span data) = 0;
  virtual std::optional<absl::StatusOr<int>> try_receive(int src, int64_t tag, Span data) = 0;

  // All operations in progress, and all later ones, fail on this rank with `reason`. The first reason stays.
  virtual void abort(const absl::Status& reason) = 0;
};

}  // namespace gradwire::collectives::cpu
