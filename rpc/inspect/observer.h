#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/proto/inspect.pb.h"
#include "gradwire/proto/membership.pb.h"
#include "gradwire/rpc/inspect/exchange.h"
#include "gradwire/security/security_options.h"
#include "gradwire/transport/transport.h"

namespace gradwire::rpc {

class WorkerConnection;

// Asks the workers of a job for their state, without being one of them (proto/inspect.proto). It uses tcp,
// and keeps its connections from one ask() to the next. What workers answer is checked against the bounds of
// the protocol; its strings are bytes that another process chose. Not thread-safe.
class Observer {
 public:
  struct Options {
    // The name of the observer, for the workers' policies and logs. With certificates: the name in its own
    // one.
    std::string name = "inspect";
    // The credentials of the job. Members that are empty come from the environment.
    SecurityOptions security;
    // The most entries of each list (InspectRequest.most).
    uint32_t most = 0;
  };

  // Errors: InvalidArgument for an invalid name; those of security::make_credentials().
  static absl::StatusOr<std::unique_ptr<Observer>> open(const Options& options);
  ~Observer();
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;

  using Answer = absl::StatusOr<proto::AgentState>;
  // Asks these workers, all at the same time, and returns their answers in the same order. Closes the
  // connections to others. Errors of an answer:
  //   DeadlineExceeded    The worker did not answer within `timeout`.
  //   Unavailable         It cannot be reached, or has no address for tcp.
  //   Unauthenticated, PermissionDenied, ResourceExhausted   It refuses this observer.
  //   Aborted             Another worker listens at the address.
  //   InvalidArgument     The answer violates the protocol.
  std::vector<Answer> ask(const std::vector<proto::WorkerRecord>& workers, absl::Duration timeout);
  // When the last answer of this worker was asked for, and when it came. InfinitePast() without a connection.
  Exchange last_exchange(uint64_t incarnation) const;

  // A question for one worker. An answer to one for the flight records has a part of at most 768 KiB.
  struct Question {
    proto::WorkerRecord worker;
    proto::InspectRequest request;
  };
  // As above, with questions of the caller. A worker may be in the list once.
  std::vector<Answer> ask_each(const std::vector<Question>& questions, absl::Duration timeout);

 private:
  Observer(Options options, std::unique_ptr<transport::Transport> transport);
  absl::StatusOr<std::shared_ptr<WorkerConnection>> connection_to(const proto::WorkerRecord& worker,
                                                                  absl::Duration timeout);

  const Options options_;
  const std::unique_ptr<transport::Transport> transport_;
  // By incarnation.
  std::map<uint64_t, std::shared_ptr<WorkerConnection>> connections_;
  uint64_t next_question_ = 1;
};

// Whether an answer keeps the bounds of proto/inspect.proto, and is one of this worker. InvalidArgument.
absl::Status check_answer(const proto::AgentState& state, uint64_t incarnation);

}  // namespace gradwire::rpc
