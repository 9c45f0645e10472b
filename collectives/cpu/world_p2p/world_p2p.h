#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/collectives/cpu/bytes/span.h"
#include "gradwire/collectives/cpu/p2p/frame.h"
#include "gradwire/security/credentials.h"
#include "gradwire/security/limits.h"
#include "gradwire/store/interface/store.h"

namespace gradwire::collectives::cpu {

// Tagged messages between the ranks of a world, over shared memory within a host and over tcp otherwise. They
// serve point-to-point operations and the collectives between hosts.
//
// A message goes from one rank to another in a `channel` (a group, or an internal part of one) with a `tag`.
// A receive takes the oldest message with its channel, tag and source. Messages from one rank with one
// channel and tag never overtake each other, as in MPI. Messages up to Options::eager_bytes are sent at once
// and wait at the receiver. Longer ones are announced first, and sent when a receive has been found for them,
// so that the waiting data is bounded. Connections are made on first use.
//
// Thread-safe. A thread that waits for one of the futures drives the transports meanwhile. WorldP2pCore is
// the only implementation; the interface keeps it out of this header.
class WorldP2p {
 public:
  struct Options {
    int rank = 0;
    int size = 1;
    // A store that only the members can access, through which they find one another and share the secret by
    // which they recognise one another. Kept.
    std::shared_ptr<store::Store> store;
    // "shm" and "tcp"; the first that reaches a rank is used. Empty: both.
    std::vector<std::string> transports;
    std::size_t eager_bytes = std::size_t{64} << 10;
    absl::Duration connect_timeout = absl::Seconds(60);
    Limits limits;
    // For tcp. nullptr: none, and then tcp reaches only ranks on this host.
    security::CredentialsPtr credentials = nullptr;
    // The users beside that of this process whose processes may be ranks on this host.
    std::vector<uid_t> allowed_users = {};
  };

  // Listens and publishes the addresses. Does not wait for the other ranks. Errors: Unavailable, and the
  // errors of the store.
  static absl::StatusOr<std::shared_ptr<WorldP2p>> create(Options options);
  virtual ~WorldP2p() = default;

  // Sends `data`, which must not change until the future is ready: then it has been sent or copied. Errors:
  // Unavailable, which names the rank, if `dst` is gone; DeadlineExceeded; Aborted after abort();
  // InvalidArgument.
  virtual Future<void> send(int dst, uint64_t channel, int64_t tag, Span data, absl::Time deadline) = 0;
  // Receives into `data`, which must have exactly the size of the message. Returns the rank that sent it.
  // With `src` kAnyRank it takes the oldest message of all ranks. InvalidArgument, with both sizes, if the
  // message has another size: the message is dropped, and its sender's future fails too if the message was
  // announced. Other errors as for send().
  virtual Future<int> receive(int src, uint64_t channel, int64_t tag, Span data, absl::Time deadline) = 0;

  // All operations of the channel, and all later ones, fail with `reason`. Other channels are not affected.
  virtual void abort(uint64_t channel, const absl::Status& reason) = 0;
  // Closes the channel permanently: its waiting messages and all later ones are dropped. Its number must not
  // be used again.
  virtual void forget(uint64_t channel) = 0;
  // Sets the names of ranks in error messages of the channel, until it is forgotten. `names` maps a rank of
  // the world to a rank of the group. Other ranks are named as ranks of the world.
  virtual void name_ranks(uint64_t channel, HashMap<int, int> names) = 0;

  // Runs the continuations of the futures.
  virtual std::shared_ptr<Executor> executor() const = 0;

  // Closes the connections, which informs the other ranks that this one has left, and joins the threads.
  // Operations in progress fail with Cancelled. Idempotent; the destructor calls it.
  virtual void shutdown() = 0;
};

}  // namespace gradwire::collectives::cpu
