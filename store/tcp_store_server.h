#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/store/memory/limits.h"

namespace gradwire::store {

class StoreLoop;

// Where a TcpStoreServer listens, and what it refuses.
struct TcpStoreServerOptions {
  // Whom to listen for: a loopback name or address means processes of this machine alone; anything else, and
  // the empty host, every interface.
  std::string host;
  // 0: the system chooses one.
  int port = 0;
  // Answers that a client has asked for and not read: beyond them it is refused, and hung up on if it goes on
  // asking.
  std::size_t max_unread_bytes = kMaxUnreadBytes;
};

// The process that holds a TcpStore's table (proto/store.proto). A TcpStore with is_master contains one; a
// launcher hosts one by itself, so that every worker may go. Calls that wait hold no thread here.
//
// States: serving, then stopped. Thread-safe.
class TcpStoreServer {
 public:
  // InvalidArgument: no such port or host. FailedPrecondition, naming the port: it is taken or may not be
  // used. Unavailable: the system has no thread or descriptor left.
  static absl::StatusOr<std::unique_ptr<TcpStoreServer>> start(const TcpStoreServerOptions& options);
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

  // The port that it listens on; the one that the system chose where 0 was given.
  int port() const;
  // Calls that wait now.
  std::size_t num_waiters() const;
  // Ends waiting calls with Unavailable and gives their answers up to `grace` to leave; later calls do
  // nothing.
  void shutdown(absl::Duration grace = absl::Seconds(1));

  // What it runs on, for a client in the same process to share.
  const std::shared_ptr<StoreLoop>& loop() const;

 private:
  struct Parts;
  explicit TcpStoreServer(std::unique_ptr<Parts> parts);

  const std::unique_ptr<Parts> parts_;
};

}  // namespace gradwire::store
