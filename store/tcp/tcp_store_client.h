#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/mutex.h"
#include "gradwire/proto/store.pb.h"
#include "gradwire/store/tcp/endpoint.h"
#include "gradwire/store/tcp/store_loop.h"
#include "gradwire/store/tcp/tcp_store_link.h"
#include "gradwire/transport/transport.h"

namespace gradwire::store {

// One client of a TcpStore's server: connects, says Hello, calls, and repeats what may be repeated after a
// broken connection (proto/store.proto says what may).
//
// A server that was reached once and then cannot be reached for kReconnectFor is given up: the store is in
// its memory, so one that is gone does not come back with it. If its host says that nobody listens there any
// more, kRefusedFor is enough; if it said itself that it stops, one attempt is. Before the first Hello the
// whole deadline is spent, because the server may not have been started yet.
//
// Thread-safe.
class TcpStoreClient {
 public:
  static constexpr absl::Duration kReconnectFor = absl::Seconds(5);
  static constexpr absl::Duration kRefusedFor = absl::Milliseconds(400);

  struct Options {
    // Where the server is dialled.
    Endpoint endpoint;
    // What messages call the store.
    std::string name;
    // How many clients the job has; 0: not said.
    int world_size = 0;
  };
  TcpStoreClient(Options options, std::shared_ptr<StoreLoop> loop, Clock& clock);
  ~TcpStoreClient();

  // Unavailable, naming the store, if it cannot be reached by then.
  absl::Status connect(absl::Time deadline);
  // DeadlineExceeded if the workers do not come by then.
  absl::Status wait_for_workers(absl::Time deadline);

  enum class Kind {
    // Answered at once, and the same when it is repeated.
    kRepeatable,
    // Answered at once, and not to be repeated.
    kOnce,
    // Repeatable, and the server waits until the deadline.
    kWaiting,
  };
  // The answer has the result that belongs to the request.
  absl::StatusOr<TcpStoreLink::Answer> call(proto::Request& request, absl::Time deadline, Kind kind);

 private:
  // Once over `link`. `may_repeat`: the error may pass, and to ask again does no harm.
  absl::StatusOr<TcpStoreLink::Answer> attempt(TcpStoreLink& link, proto::Request& request,
                                               absl::Time deadline, Kind kind, bool& may_repeat);
  // The open link, made by this thread or by another.
  absl::StatusOr<std::shared_ptr<TcpStoreLink>> open_link(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_);
  // How long to try to reach a server, given what is left to the deadline.
  absl::Duration timeout(absl::Duration left, bool stopped) const;
  // Tries for so long from `start` on, or until it is clear that there is no use; at least once.
  absl::StatusOr<std::shared_ptr<TcpStoreLink>> dial(absl::Time start, absl::Duration timeout);
  absl::StatusOr<std::shared_ptr<TcpStoreLink>> dial_once(absl::Duration timeout);
  absl::Status greet(TcpStoreLink& link, absl::Duration timeout);
  // Waits on the calling thread.
  absl::Status pause(absl::Duration duration);
  absl::Status named(const absl::Status& status) const;

  const Options options_;
  Clock& clock_;
  const uint64_t id_;
  const std::shared_ptr<StoreLoop> loop_;
  const std::unique_ptr<transport::Transport> transport_;
  // The server's number; 0 before it has answered a Hello.
  std::atomic<uint64_t> server_{0};

  Mutex mutex_;
  CondVar dialled_;
  std::shared_ptr<TcpStoreLink> link_ ABSL_GUARDED_BY(mutex_);
  bool dialling_ ABSL_GUARDED_BY(mutex_) = false;
  // Of the last dial.
  absl::Status dial_failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::store
