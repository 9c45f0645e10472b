#pragma once

#include <memory>
#include <optional>
#include <string>

#include "gradwire/store/store.h"

namespace gradwire::store {

class TcpStoreClient;
class TcpStoreServer;

// How a TcpStore is opened.
struct TcpStoreOptions {
  // How many processes open this store; none: not said. All that say it must say the same.
  std::optional<int> world_size = std::nullopt;
  // This one holds the table, in a server of its own.
  bool is_master = false;
  // For connecting (and waiting for the workers), and timeout() afterwards.
  absl::Duration timeout = absl::Seconds(300);
  // The master returns when world_size processes, itself included, have connected. The others need not wait.
  bool wait_for_workers = true;
};

// A store held by one process and used over TCP (proto/store.proto): the one that jobs on several hosts use.
// The master holds it for as long as its TcpStore lives; afterwards the others' calls end with Unavailable
// that names host and port: at once if the master left in order, within a second if only its process is gone,
// else when it could not be reached for 5 s. If another server has taken the master's place, they end with
// Aborted: the keys are gone. If something else has, with FailedPrecondition.
//
// After a broken connection set, get, wait, watch and num_keys are repeated within their deadline. add,
// compare_set and delete_key are not repeated once they may have reached the server, so that none is applied
// twice: Unavailable from them leaves open whether it was applied.
//
// Thread-safe. Opens one connection, and has a thread that sleeps unless there is something to hear; the
// master also listens on every interface, or on the loopback interface alone if `host` is one of its names or
// addresses.
class TcpStore : public Store {
 public:
  // `port` 0 with is_master: the system chooses, see port(). Throws Error: FailedPrecondition that names the
  // port when it is taken; Unavailable that names host and port when the master cannot be reached within the
  // timeout; FailedPrecondition when what answers there is no Gradwire store, or of another
  // version; DeadlineExceeded when workers did not come; InvalidArgument for an impossible host, port or
  // world size, or for a world size that another process contradicts (both are named).
  TcpStore(const std::string& host, int port, TcpStoreOptions options = {});
  ~TcpStore() override;

  // The same without exceptions.
  static absl::StatusOr<std::shared_ptr<TcpStore>> open(const std::string& host, int port,
                                                        TcpStoreOptions options = {});

  // The master's host, as it was given.
  const std::string& host() const { return host_; }
  // The master's port; the one that the system chose where 0 was given.
  int port() const { return port_; }
  // Whether this process holds the table.
  bool is_master() const { return server_ != nullptr; }
  std::string description() const override;

 private:
  struct Unopened {};
  TcpStore(Unopened, const std::string& host, int port, const TcpStoreOptions& options);
  absl::Status start(const TcpStoreOptions& options);

  GRADWIRE_STORE_OPERATIONS_;

  // Set once, before the constructor returns.
  std::string host_;
  int port_;
  std::unique_ptr<TcpStoreServer> server_;  // The master's.
  std::unique_ptr<TcpStoreClient> client_;
};

}  // namespace gradwire::store
