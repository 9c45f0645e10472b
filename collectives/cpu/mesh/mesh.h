#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/future.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/collectives/cpu/p2p/frame.h"
#include "gradwire/collectives/cpu/span.h"
#include "gradwire/security/limits.h"
#include "gradwire/store/store.h"

namespace gradwire::collectives::cpu {

// Tagged messages between the ranks of a world, over shared memory within a host and tcp elsewhere: point to
// point, and what collectives between hosts are made of.
//
// A message goes from one rank to another in a `channel` (a group, or what a group uses internally) with a
// `tag`. A receive takes the first message that came in its channel with its tag from its source; messages
// from one rank with one channel and tag are never overtaken (as MPI's). Messages up to Options::eager_bytes
// travel at once and wait at the receiver; longer ones are announced and travel when a receive asks for them,
// so that what waits is bounded. Connections are made when first used.
//
// Thread-safe. Who waits for one of its futures drives the transports meanwhile.
class Mesh {
 public:
  struct Options {
    int rank = 0;
    int size = 1;
    // Handed to the members alone: where they find one another, and the secret by which they know one
    // another. Kept.
    std::shared_ptr<store::Store> store;
    // "shm", "tcp"; empty: both, the first that reaches the rank.
    std::vector<std::string> transports;
    std::size_t eager_bytes = std::size_t{64} << 10;
    absl::Duration connect_timeout = absl::Seconds(60);
    Limits limits;
  };

  // Listens and publishes where; does not wait for the others. Errors: Unavailable, or the store's.
  static absl::StatusOr<std::shared_ptr<Mesh>> create(Options options);
  virtual ~Mesh() = default;

  // The data must stay as it is until the future is done: it has left, or was copied. Errors: Unavailable,
  // naming the rank, when `dst` is gone; DeadlineExceeded; Aborted after abort(); InvalidArgument.
  virtual Future<void> send(int dst, uint64_t channel, int64_t tag, Span data, absl::Time deadline) = 0;
  // Into `data`, which must have exactly the size of the message; the rank that it came from. `src` may be
  // kAnyRank: the one that came first. InvalidArgument, with both sizes, when it has another size: the
  // message is dropped, and its sender's future fails too if it was announced. Errors as above.
  virtual Future<int> receive(int src, uint64_t channel, int64_t tag, Span data, absl::Time deadline) = 0;

  // Everything under way in the channel, and everything that comes, fails with this reason; other channels go
  // on.
  virtual void abort(uint64_t channel, const absl::Status& reason) = 0;
  // The channel is not used any more, nor will it be: what waits in it, and what still comes for it, is
  // dropped.
  virtual void forget(uint64_t channel) = 0;
  // How errors of the channel name ranks, until it is forgotten: by rank of the world, the number in a group.
  // Others are named as ranks of the world.
  virtual void name_ranks(uint64_t channel, absl::flat_hash_map<int, int> names) = 0;

  // Where continuations of its futures run.
  virtual std::shared_ptr<Executor> executor() const = 0;

  // Ends connections (the other side hears that this rank left) and joins the threads; what is under way
  // fails with Cancelled. Idempotent; the destructor does it.
  virtual void shutdown() = 0;
};

}  // namespace gradwire::collectives::cpu
