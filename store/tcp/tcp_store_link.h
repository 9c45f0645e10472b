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

// One connection of a client to a TcpStore's server: sends requests and finds for each answer who waits for
// it.
//
// States: open from the start (what is sent while the connection is being made is queued), then closed for
// good, with the reason: Unavailable, or FailedPrecondition when what answers is no Gradwire store.
// Thread-safe. Shared by the client and the connection, which knows it as its listener.
class TcpStoreLink : public transport::ConnectionListener {
 public:
  using Answer = std::shared_ptr<const proto::Response>;

  // Waiting for an answer does `executor`'s work meanwhile.
  explicit TcpStoreLink(std::shared_ptr<Executor> executor) : executor_(std::move(executor)) {}

  // Once, before send().
  void attach(std::shared_ptr<transport::Connection> connection);

  // A request on its way. An answer with an error code is an answer; an error is the reason why none will
  // come.
  struct Sent {
    uint64_t id;
    Future<Answer> answer;
  };
  // Gives the request its id. An error: it has not been sent.
  absl::StatusOr<Sent> send(proto::Request& request);
  // Nobody waits for this one any more.
  void forget(uint64_t id);

  // Ends the link. Every answer that has not come fails with `reason`.
  void close(absl::Status reason);
  // OK while it is open; afterwards why it is not.
  absl::Status status() const;
  // The server said that it stops, before the link closed.
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
