#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace gradwire::store {

struct TcpStoreServerOptions {
  // Whom to listen for: a loopback name or address means processes of this machine alone; anything else, and
  // the empty host, every interface.
  std::string host;
  // 0: the system chooses one.
  int port = 0;
};

// The process that holds a TcpStore's table (proto/store.proto). A TcpStore with is_master contains one; a
// launcher hosts one by itself, so that every worker may go. Calls that wait hold no thread here.
//
// States: serving, then stopped. Thread-safe.
class TcpStoreServer {
 public:
  // InvalidArgument: no such port or host. FailedPrecondition, naming the port: it is taken or may not be
  // used.
  static absl::StatusOr<std::unique_ptr<TcpStoreServer>> start(const TcpStoreServerOptions& options);
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

  int port() const;
  // Calls that wait now.
  std::size_t num_waiters() const;
  // Ends waiting calls with Unavailable and the others within `grace`; later calls do nothing.
  void shutdown(absl::Duration grace = absl::Seconds(1));

 private:
  struct Parts;
  explicit TcpStoreServer(std::unique_ptr<Parts> parts);

  const std::unique_ptr<Parts> parts_;
};

}  // namespace gradwire::store
