#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/mutex.h"
#include "gradwire/gateway/serving/core.h"
#include "gradwire/gateway/serving/results.h"
#include "gradwire/gateway/values/tensors.h"
#include "gradwire/proto/gateway.pb.h"
#include "gradwire/rpc/caller/outgoing_call.h"
#include "gradwire/rpc/trace/trace_context.h"

namespace gradwire::gateway {

// How the result of a call reaches the client.
enum class CallForm {
  kUnary,    // In one message.
  kChunked,  // Large tensors come in chunks.
  kStream,   // The result is a stream, whose items come one after the other.
};

// The end of a call.
struct Outcome {
  // A stream of results, which the worker has begun.
  struct Stream {
    std::shared_ptr<rpc::RRefHandle> handle;
    Type item;
    // For references among the items.
    SessionUse session;
    Quotas::Permit permit;
  };

  absl::Status status;
  v1::ErrorDetail detail;
  v1::CallResponse response;
  // For CallForm::kStream, in place of a result.
  Stream stream;
  // The bytes of the chunked tensors of the response, in order.
  std::vector<TensorBytes> chunked;
};

// One call of a client to a worker. It proceeds in these steps:
//   1. start() checks the callee and the session.
//   2. A worker is chosen, and its callees are looked up.
//   3. The arguments are converted to a request, which is sent.
//   4. The answer is converted, and `done` is called, once. A stream of results is not read: `done` gets it.
// Thread-safe.
class Invocation : public std::enable_shared_from_this<Invocation> {
 public:
  using Done = absl::AnyInvocable<void(Outcome)>;
  struct Input {
    v1::CallRequest request;
    // The memory of chunked tensors of `request`, which is filled.
    HashMap<const v1::Tensor*, transport::Buffer> uploaded;
    absl::Time deadline;
    // The trace to which the call belongs; nullptr if none is known.
    std::shared_ptr<const rpc::TraceContext> trace;
    Quotas::Permit permit;
    CallForm form = CallForm::kUnary;
  };

  Invocation(std::shared_ptr<Core> core, std::unique_ptr<Input> input, Done done);

  // `done` is called on any thread, or inside start().
  void start();
  // The client does not want the result any more.
  void cancel();

 private:
  class Arguments;

  absl::Status begin();
  // Step 2 for a call without a worker: tries the workers one after the other.
  void try_next_worker();
  void found_callees(const rpc::Worker& worker, const CalleeDirectory::Answer& callees);
  // Steps 3 and 4, on the executor.
  void post_send(const rpc::Worker& worker, const ServedCallee* callee,
                 std::shared_ptr<const ServedCallees> keep = nullptr);
  void send(const rpc::Worker& worker, const ServedCallee* callee);
  absl::Status fill(rpc::OutgoingCall& call, const ServedCallee* callee);
  absl::Status check_form();
  absl::Status add_arguments(rpc::OutgoingCall& call, const ServedCallee* callee);
  void send_remote(rpc::OutgoingCall& call, std::string type);
  void sent(uint64_t id);
  void answered(absl::StatusOr<rpc::IncomingPayload> in);
  absl::Status read(rpc::IncomingPayload& in, Outcome& outcome);
  // The last step: adds the worker and the details. complete() calls `done`, unless it was called.
  void finish(Outcome outcome);
  void complete(Outcome outcome);
  void fail(absl::Status status);

  v1::FunctionKind kind() const;
  const std::string& name() const;

  const std::shared_ptr<Core> core_;
  const std::unique_ptr<Input> input_;

  // Used by one step at a time.
  SessionUse session_;
  // The object of a method, a fetch or an operator.
  std::shared_ptr<rpc::RRefHandle> target_;
  std::vector<rpc::Worker> candidates_;
  std::size_t next_candidate_ = 0;
  absl::Status unreachable_;
  Type result_type_;
  Type item_type_;
  std::string worker_;
  v1::ErrorDetail detail_;

  Mutex mutex_;
  Done done_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t call_id_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace gradwire::gateway
