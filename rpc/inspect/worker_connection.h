#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/mutex.h"
#include "gradwire/proto/inspect.pb.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/inspect/exchange.h"
#include "gradwire/transport/transport.h"

namespace gradwire::rpc {

// The connection of an observer to one worker: it introduces itself, asks, and waits for the answer.
//
//   connecting -> greeted (its Hello has been sent) -> open (the worker's Hello has come) -> ended
//
// A question that is asked earlier is sent when the connection is open. Thread-safe.
class WorkerConnection : public transport::ConnectionListener {
 public:
  explicit WorkerConnection(uint64_t incarnation) : incarnation_(incarnation) {}

  // Call first. Sends the Hello of the observer `name`.
  void open(std::shared_ptr<transport::Connection> connection, const std::string& name);
  // Sends a question, whose number is higher than that of the last one. At most one is open at a time: the
  // last one is given up.
  void ask(uint64_t number, std::string body);
  // Waits for the answer to this question. Errors: as Observer::ask().
  absl::StatusOr<proto::AgentState> wait(uint64_t number, absl::Time deadline);
  // When the question that was answered last was asked, and when its answer came, by the wall clock of this
  // process. InfinitePast() before the first answer.
  Exchange last_exchange() const;
  bool ended() const;
  void close();

  void on_message(transport::Connection& connection, transport::Message message) override;
  uint64_t max_message_bytes() const override;
  void on_closed(transport::Connection& connection, absl::Status reason) override;

 private:
  // Handles a message. An error ends the connection.
  absl::Status receive_locked(const proto::Envelope& envelope) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status receive_answer_locked(const proto::Response& response) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string question_locked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint64_t incarnation_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::shared_ptr<transport::Connection> connection_ ABSL_GUARDED_BY(mutex_);
  bool greeted_ ABSL_GUARDED_BY(mutex_) = false;
  // Why the connection has ended; OK while it has not.
  absl::Status ended_ ABSL_GUARDED_BY(mutex_);
  uint64_t question_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string body_ ABSL_GUARDED_BY(mutex_);
  absl::Time asked_ ABSL_GUARDED_BY(mutex_);
  Exchange last_exchange_ ABSL_GUARDED_BY(mutex_);
  bool unsent_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::StatusOr<proto::AgentState>> answer_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::rpc
