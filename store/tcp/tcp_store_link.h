#pragma once

#include <cstdint>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gradwire/base/future.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/proto/store.pb.h"
#include "gradwire/transport/connection.h"

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
  absl::flat_hash_map<uint64_t, Promise<Answer>> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::store
