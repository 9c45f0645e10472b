#pragma once

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/base/block_cache.h"
#include "gradwire/codec/encoded_tensors.h"
#include "gradwire/codec/tensor_set.h"
#include "gradwire/rpc/caller/outgoing_call.h"
#include "gradwire/rpc/caller/pending_calls.h"
#include "gradwire/rpc/core/destination.h"
#include "gradwire/rpc/core/envelope.h"
#include "gradwire/rpc/core/worker.h"
#include "gradwire/rpc/rref/message_references.h"

// The steps that make a request of arguments, for the calls to one worker (OutgoingCall) and to several
// (rpc/mesh/group_call.h).
namespace gradwire::rpc {

struct AgentRuntime;
class Caller;
class RRefService;

// A request that is being put together: its envelope, its references, and the state that outlives it.
struct RequestParts {
  explicit RequestParts(RRefService& rrefs) : references(rrefs, /*is_answer=*/false) {}
  // Parts are as large as an envelope, so each thread keeps freed memory for its next calls.
  static void* operator new(std::size_t) { return BlockCache<sizeof(RequestParts)>::take(); }
  static void operator delete(void* parts) { BlockCache<sizeof(RequestParts)>::give(parts); }

  proto::Request& request() { return *envelope->mutable_request(); }

  EnvelopeBox envelope;
  MessageReferences references;
  // State of the call until it completes; nullptr after send_request(), which passes it on.
  PendingCalls::Taken call = std::make_unique<PendingCall>();
  // The map of Destination::with_device_map(); nullptr without.
  std::shared_ptr<const DeviceMap> device_map;
};

// Fixes the callee's worker, the times and the options of a call that starts at `started`. Returns the
// worker, which lives as long as `parts.call`; an empty Worker if the destination is unknown. The first error
// is stored in `status`.
const Worker& open_request(Caller& caller, const Destination& destination, std::string callee,
                           absl::Time started, RequestParts& parts, absl::Status& status);

// Whether the request, to an idempotent callee, may be sent more than once.
bool may_repeat(const AgentRuntime& runtime, const proto::Request& request, const Worker& to);

// The arguments of send_request(). All of them must outlive the call of that function.
struct RequestToSend {
  Caller& caller;
  RequestParts& parts;
  const Worker& to;
  // As OutgoingCall::borrow_tensors().
  bool borrow = false;
  // Whether the call belongs to the autograd context of the calling thread.
  bool joins_context = true;
  // The tensors of the arguments; nullptr without tensors. Encoded with `encode`, which may destroy them.
  TensorSet* tensors = nullptr;
  absl::FunctionRef<bool()> is_repeatable;
  // `map`: the device map of the call, or nullptr.
  absl::FunctionRef<absl::Status(const DeviceMap* map, bool repeatable, EncodedTensors& encoded)> encode;
};
// Completes the request and passes it on to the Caller. Returns the id of the call. If `status` is an error,
// or a step fails, `done` receives the error before this returns.
uint64_t send_request(const RequestToSend& send, absl::Status status, OutgoingCall::Completion done);

}  // namespace gradwire::rpc
