#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "proto/store.grpc.pb.h"
#include "store/endpoint.h"

namespace gradwire::store {

// One client's connection to a TcpStore's server: connects, calls, and repeats what may be repeated after a
// broken connection (proto/store.proto says what may).
//
// A server that was reached once and then cannot be reached for kReconnectFor is given up: the store is in
// its memory, so one that is gone does not come back with it. Before the first Hello the whole deadline is
// spent, because the server may not have been started yet.
//
// Thread-safe. The channel shares no connection with other channels of the process.
class TcpStoreClient {
 public:
  static constexpr absl::Duration kReconnectFor = absl::Seconds(5);

  // `name` is what messages call the store; `endpoint` is where it is dialled.
  TcpStoreClient(const Endpoint& endpoint, std::string name, Clock& clock);

  // Says Hello. Unavailable, naming the store, if it cannot be reached; DeadlineExceeded if the workers do
  // not come.
  absl::Status hello(int world_size, bool wait_for_workers, absl::Time deadline);

  template <class Request, class Response>
  using Method = grpc::Status (proto::TcpStore::Stub::*)(grpc::ClientContext*, const Request&, Response*);

  // A call that is answered at once.
  template <class Request, class Response>
  absl::Status call(Method<Request, Response> method, Request& request, Response& response,
                    absl::Time deadline, bool may_repeat) {
    request.set_server(server_.load());
    return run(deadline, may_repeat, absl::ZeroDuration(), [&](grpc::ClientContext& context, absl::Duration) {
      return (stub_.get()->*method)(&context, request, &response);
    });
  }

  // A call that waits in the server until the deadline.
  template <class Request, class Response>
  absl::Status call_waiting(Method<Request, Response> method, Request& request, Response& response,
                            absl::Time deadline) {
    request.set_server(server_.load());
    return run(deadline, /*may_repeat=*/true, kAnswerTime,
               [&](grpc::ClientContext& context, absl::Duration left) {
                 request.set_timeout_us(to_timeout_us(left));
                 return (stub_.get()->*method)(&context, request, &response);
               });
  }

 private:
  // What the server may take, beyond its timeout, to say that the time was up.
  static constexpr absl::Duration kAnswerTime = absl::Seconds(5);
  using Attempt = absl::FunctionRef<grpc::Status(grpc::ClientContext& context, absl::Duration left)>;

  static int64_t to_timeout_us(absl::Duration left);
  absl::Status run(absl::Time deadline, bool may_repeat, absl::Duration answer_time, Attempt attempt);
  absl::Status connect(absl::Time deadline);
  absl::Status unreachable(absl::Duration waited);

  Clock& clock_;
  const std::string name_;
  const uint64_t id_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<proto::TcpStore::Stub> stub_;
  // The server's number; 0 before it has said Hello.
  std::atomic<uint64_t> server_{0};
};

}  // namespace gradwire::store
