#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/security/security_options.h"
#include "gradwire/store/interface/store.h"

namespace gradwire::security {
class Credentials;
}

namespace gradwire::store {

class C10dSocket;
class StoreCaller;
class TcpStoreServer;

// Options of a TcpStore.
struct TcpStoreOptions {
  // Number of processes that open this store. All processes that set it must set the same number.
  std::optional<int> world_size = std::nullopt;
  // Whether this process holds the table, in a server of its own.
  bool is_master = false;
  // Limit for connecting (and for waiting for the workers); afterwards the store's timeout().
  absl::Duration timeout = absl::Seconds(300);
  // Whether the master waits until world_size processes, itself included, have connected. The other processes
  // need not wait.
  bool wait_for_workers = true;
  // Whether the master serves every client of PyTorch's TCPStore. These clients cannot prove that they belong
  // to the job. If false, it serves only those that run on its own host, connect by the loopback interface,
  // and belong to its own user: the kernel says so. If not set: every client if
  // `security.insecure` is set, else only those.
  std::optional<bool> allow_unauthenticated_pytorch = std::nullopt;
  // How this process and the others prove that they belong to the job. Without a token or a certificate only
  // processes of this machine can use the store, unless `security.insecure` is set.
  SecurityOptions security = {};
};

// A store that one process, the master, holds and the others use over TCP (proto/store.proto). Jobs on
// several hosts use this kind. The master holds the table for as long as its TcpStore exists. Afterwards the
// other processes' calls fail with Unavailable, which names host and port: at once if the master closed its
// store, within a second if the master's process ended, otherwise when the master could not be reached for 5
// s. Calls fail with Aborted if another Gradwire server now listens at the address (the keys are lost), and
// with FailedPrecondition if another program does.
//
// After a broken connection, set, multi_set and all calls that change nothing are repeated within their
// deadline. add, append, compare_set, delete_key, queue_push and queue_pop are not repeated once they may
// have reached the server, so that no change is applied twice. If one of them fails with Unavailable, it is
// unknown whether the change was applied.
//
// Programs of PyTorch can use the same store: the master also serves clients of torch.distributed.TCPStore,
// which see the same keys and queues. If a program of PyTorch is the master, this store is a client of its
// TCPStore. It finds that out by itself, and then differs in this: keys have at most 8191 bytes and values 8
// MiB; watch() for a change reads the value every 10 to 200 ms; a sum that does not fit 64 bits wraps around;
// a master that was started again is not noticed; queues need use_libuv=True, else FailedPrecondition. Then
// each call that runs has a connection.
//
// Thread-safe. The store opens one connection and has one thread, which sleeps unless there is something to
// receive. The master also listens on every interface, or on the loopback interface alone if `host` is a
// loopback name or address.
class TcpStore : public Store {
 public:
  // With is_master and `port` 0 the system chooses the port; see port(). Throws Error: FailedPrecondition
  // that names the port if it is in use; Unavailable that names host and port if the master cannot be reached
  // within the timeout; FailedPrecondition if the server there is not a Gradwire store, or speaks another
  // version; DeadlineExceeded if workers did not connect; InvalidArgument for an invalid host, port or world
  // size, or if another process has a different world size (both are named).
  TcpStore(const std::string& host, int port, TcpStoreOptions options = {});
  ~TcpStore() override;

  // The same without exceptions.
  static absl::StatusOr<std::shared_ptr<TcpStore>> open(const std::string& host, int port,
                                                        TcpStoreOptions options = {});

  // The master's host, as given to the constructor.
  const std::string& host() const { return host_; }
  // The master's port; the port that the system chose if 0 was given.
  int port() const { return port_; }
  // Whether this process holds the table.
  bool is_master() const { return server_ != nullptr; }
  std::string description() const override;

 private:
  struct Unopened {};
  TcpStore(Unopened, const std::string& host, int port, const TcpStoreOptions& options);
  absl::Status start(const TcpStoreOptions& options);
  // Goes on as a client of a server of PyTorch, to which `socket` is a connection.
  absl::Status start_at_torch(C10dSocket socket, const TcpStoreOptions& options, absl::Time deadline);

  GRADWIRE_STORE_OPERATIONS_;

  // Set once, before the constructor returns.
  std::string host_;
  int port_;
  std::unique_ptr<TcpStoreServer> server_;  // Only on the master.
  std::unique_ptr<StoreCaller> client_;
  // Made once, and shared with the server and with clones.
  std::shared_ptr<const security::Credentials> credentials_;
  // SecurityOptions::allowed_users, for clones.
  std::vector<uid_t> allowed_users_;
  bool served_by_torch_ = false;
};

}  // namespace gradwire::store
