#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/proto/store.pb.h"
#include "gradwire/security/credentials.h"
#include "gradwire/store/calls/endpoint.h"
#include "gradwire/store/calls/store_caller.h"
#include "gradwire/store/tcp/store_loop.h"
#include "gradwire/transport/connection.h"
#include "gradwire/transport/transport.h"

namespace gradwire::store {

// One connection of a client to a TcpStore's server. It sends requests and matches each answer to its
// request.
//
// States: open from the start (requests are queued while the connection is being made), then closed, with a
// reason: Unavailable, or FailedPrecondition if the server is not a Gradwire store. Thread-safe. Shared by
// the client and the connection, whose listener it is.
class TcpStoreLink : public transport::ConnectionListener {
 public:
  using Answer = std::shared_ptr<const proto::Response>;

  // A thread that waits for an answer meanwhile runs work of `executor`.
  explicit TcpStoreLink(std::shared_ptr<Executor> executor) : executor_(std::move(executor)) {}

  // Must be called once, before send().
  void attach(std::shared_ptr<transport::Connection> connection);

  // A request that was sent. The future gets an answer (which may have an error code), or an error if no
  // answer will arrive.
  struct Sent {
    uint64_t id;
    Future<Answer> answer;
  };
  // Sets the request's id and sends it. After an error the request has not been sent.
  absl::StatusOr<Sent> send(proto::Request& request);
  // Drops the answer to this request when it arrives.
  void forget(uint64_t id);

  // Closes the link. Every request without an answer fails with `reason`.
  void close(absl::Status reason);
  // OK while the link is open; afterwards the reason why it was closed.
  absl::Status status() const;
  // Whether the server announced, before the link closed, that it stops.
  bool stopping() const;

 private:
  void on_message(transport::Connection& connection, transport::Message message) override;
  void on_closed(transport::Connection& connection, absl::Status reason) override;

  const std::shared_ptr<Executor> executor_;

  mutable Mutex mutex_;
  std::shared_ptr<transport::Connection> connection_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  HashMap<uint64_t, Promise<Answer>> calls_ ABSL_GUARDED_BY(mutex_);
};

// One client of a TcpStore's server. It connects, sends Hello and makes calls. After a broken connection it
// repeats the calls that may be repeated (proto/store.proto says which).
//
// If the server was reached once and then cannot be reached for kReconnectFor, the client gives up: the keys
// are in the server's memory, so a server that ended cannot come back with them. If connections are refused,
// the client gives up after kRefusedFor; if the server announced that it stops, after one attempt. Before the
// first Hello the client tries until the deadline, because the server may not have been started yet.
//
// Thread-safe.
class TcpStoreClient : public StoreCaller {
 public:
  static constexpr absl::Duration kReconnectFor = absl::Seconds(5);
  static constexpr absl::Duration kRefusedFor = absl::Milliseconds(400);

  struct Options {
    // The address of the server.
    Endpoint endpoint;
    // The name of the store in messages.
    std::string name;
    // Number of clients of the job; 0 if unknown.
    int world_size = 0;
    // The proof of this process, and the proof that it demands of the server.
    security::CredentialsPtr credentials = nullptr;
    // Without credentials: the users whose process may be the server (SecurityOptions::allowed_users).
    std::vector<uid_t> allowed_users = {};
    // Asks whether a server of another protocol is at the endpoint, for the given time at most. Called in
    // connect() only, after the server has accepted a connection and closed it. If true, connect() fails with
    // kOtherServer.
    std::function<bool(absl::Duration timeout)> is_other_server = nullptr;
  };
  // The message of the FailedPrecondition of connect() at such a server.
  static constexpr absl::string_view kOtherServer = "the server speaks another protocol";

  TcpStoreClient(Options options, std::shared_ptr<StoreLoop> loop, Clock& clock);
  ~TcpStoreClient() override;

  // Connects. Unavailable, which names the store, if it cannot be reached by the deadline.
  absl::Status connect(absl::Time deadline);
  // Waits until world_size clients have connected. DeadlineExceeded if they have not by the deadline.
  absl::Status wait_for_workers(absl::Time deadline);

  absl::StatusOr<Answer> call(proto::Request& request, absl::Time deadline, Kind kind) override;

 private:
  // Makes one attempt over `link`. Sets `may_repeat` if the error may be temporary and repeating the call is
  // safe.
  absl::StatusOr<Answer> attempt(TcpStoreLink& link, proto::Request& request, absl::Time deadline, Kind kind,
                                 bool& may_repeat);
  // Returns the open link; dials if necessary, on this thread or by waiting for another that dials.
  absl::StatusOr<std::shared_ptr<TcpStoreLink>> open_link(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_);
  // How long to try to reach the server, given the time left to the deadline.
  absl::Duration timeout(absl::Duration left, bool stopped) const;
  // Tries to connect for `timeout` from `start` on, at least once. Gives up early on errors that cannot pass.
  absl::StatusOr<std::shared_ptr<TcpStoreLink>> dial(absl::Time start, absl::Duration timeout);
  absl::StatusOr<std::shared_ptr<TcpStoreLink>> dial_once(absl::Duration timeout);
  absl::Status greet(TcpStoreLink& link, absl::Duration timeout);
  // Blocks the calling thread.
  absl::Status pause(absl::Duration duration);
  // Adds the name of the store to an error.
  absl::Status named(const absl::Status& status) const;

  const Options options_;
  Clock& clock_;
  const uint64_t id_;
  const std::shared_ptr<StoreLoop> loop_;
  const std::unique_ptr<transport::Transport> transport_;
  // The server's number; 0 before it has answered a Hello.
  std::atomic<uint64_t> server_{0};

  Mutex mutex_;
  CondVar dial_ended_;
  std::shared_ptr<TcpStoreLink> link_ ABSL_GUARDED_BY(mutex_);
  bool dialling_ ABSL_GUARDED_BY(mutex_) = false;
  // Result of the last attempt to connect.
  absl::Status dial_failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::store
