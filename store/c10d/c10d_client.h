#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/mutex.h"
#include "gradwire/store/c10d/c10d_socket.h"
#include "gradwire/store/calls/endpoint.h"
#include "gradwire/store/calls/store_caller.h"

namespace gradwire::store {

// A client of a server of PyTorch's TCPStore: a TcpStore whose master is a program of PyTorch. Each call has
// a connection of its own while it runs, so that calls do not wait for each other; a few connections are kept
// for later calls. Calls run on the calling thread.
//
// If the server was reached once and then cannot be reached for some seconds, calls fail with Unavailable.
// The protocol does not show that the server was restarted and has lost its keys. add() to a value that is
// not a number fails with InvalidArgument; a sum that does not fit 64 bits wraps around. A server without
// libuv has no queues: calls for them fail with FailedPrecondition.
//
// Thread-safe.
class C10dClient : public StoreCaller {
 public:
  struct Options {
    C10dTarget target;
    // The name of the store in messages.
    std::string name;
  };
  C10dClient(Options options, Clock& clock) : options_(std::move(options)), clock_(clock) {}

  // Returns a connection to the target if a server of PyTorch's TCPStore is there, else nullopt. Asks it,
  // until the deadline at most.
  static std::optional<C10dSocket> find_server(const C10dTarget& target, Clock& clock, absl::Time deadline);
  // The first call uses `socket` instead of a new connection. PyTorch's server asks the name service for the
  // name of the client at each connection, and serves no client meanwhile.
  void keep(C10dSocket socket);

  // Counts this process as one of the workers for which the master may wait.
  absl::Status join(absl::Time deadline);

  absl::StatusOr<Answer> call(proto::Request& request, absl::Time deadline, Kind kind) override;

 private:
  // Returns a connection: one that is kept, or a new one.
  absl::StatusOr<C10dSocket> take(absl::Time deadline);
  // The reason why the server has closed the connection during the call, if the server is still there.
  absl::Status explain(const proto::Request& request, const absl::Status& status, absl::Time deadline);
  // Adds the name of the store to an error.
  absl::Status named(const absl::Status& status) const;

  const Options options_;
  Clock& clock_;

  Mutex mutex_;
  std::vector<C10dSocket> idle_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::store
