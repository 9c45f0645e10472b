#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/base/mutex.h"
#include "gradwire/codec/codec.h"
#include "gradwire/codec/encoder.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/caller/outgoing_call.h"
#include "gradwire/rpc/core/destination.h"
#include "gradwire/rpc/core/worker.h"

namespace gradwire::rpc {

class Caller;
class RRefHandle;
struct EncodedTensors;
struct RequestParts;

// The arguments of one call to several workers. Set the callee in request(), add each argument once, then
// send a MemberCall to each worker. All of these calls share the encoded values and the buffers of the
// tensors. Each of them has its own forks of references and its own send node of an autograd context.
//
// Not thread-safe until the first MemberCall is sent, thread-safe after that. It must outlive its
// MemberCalls, but not the calls that they have sent. The agent must outlive it.
class GroupCall {
 public:
  // `callee` is used in messages. `members`: the number of calls that will be sent.
  GroupCall(Caller& caller, std::string callee, std::size_t members);
  ~GroupCall();
  GroupCall(const GroupCall&) = delete;
  GroupCall& operator=(const GroupCall&) = delete;

  const absl::Status& status() const { return status_; }
  void set_status(absl::Status status) { status_.Update(std::move(status)); }
  // The part of the requests that is the same for all members.
  proto::Request& request() { return request_; }

  // Encodes the next positional argument. If that fails, status() is an error.
  template <class T, class V>
  void add_argument(V&& value) {
    require_codec<T>();
    if (status_.ok())
      set_status(
          Codec<T>::encode(std::forward<V>(value), encoder_, *request_.mutable_arguments()->add_values()));
  }
  // Adds an argument that is another reference for each member, in their order.
  void add_reference_of_each(std::vector<std::shared_ptr<RRefHandle>> handles);

  // As OutgoingCall. The caller must wait until all calls have ended.
  void borrow_tensors() { borrow_ = true; }
  void set_idempotent() { idempotent_ = true; }
  // The calls do not belong to the autograd context of the calling thread.
  void leave_context() { joins_context_ = false; }

  // The start of all calls, on Clock::system().
  absl::Time started() const { return started_; }

 private:
  friend class MemberCall;

  // Notes the references of the arguments instead of making forks. An argument names a reference by its place
  // in the list. MemberCall makes the forks in the same order, so the places stay right.
  class NotedReferences : public Encoder::References {
   public:
    absl::StatusOr<uint32_t> add(const std::shared_ptr<RRefHandle>& handle, proto::Payload& payload) override;
    // One entry for each reference: one handle for all members, or one for each of them.
    std::vector<std::vector<std::shared_ptr<RRefHandle>>> handles;
  };

  absl::Status encode(const Worker& to, const DeviceMap* map, bool repeatable, proto::Payload& payload,
                      EncodedTensors& encoded);
  absl::Status encode_shared(proto::Payload& payload, EncodedTensors& encoded);

  Caller& caller_;
  const std::string callee_;
  const std::size_t members_;
  // All calls have the same start, and so the same deadline.
  const absl::Time started_;
  proto::Request request_;
  NotedReferences references_;
  Encoder encoder_;
  bool borrow_ = false;
  bool idempotent_ = false;
  bool joins_context_ = true;
  absl::Status status_;
  // Set when the first member's call is sent.
  std::unique_ptr<TensorSet> tensors_;
  bool has_taken_tensors_ = false;

  // The tensors as the first member's request has them. Buffers of the same memory go into all requests.
  struct Shared;
  Mutex mutex_;
  std::unique_ptr<Shared> shared_ ABSL_GUARDED_BY(mutex_);
};

// The call to one of the workers of a GroupCall. It exists on the stack of the thread that sends it.
class MemberCall {
 public:
  // `index`: the member's place, from 0. If the destination is unknown, status() is an error.
  MemberCall(GroupCall& group, const Destination& to, std::size_t index);
  // Takes back the references of the arguments if the call was not sent.
  ~MemberCall();
  MemberCall(const MemberCall&) = delete;
  MemberCall& operator=(const MemberCall&) = delete;

  const absl::Status& status() const { return status_; }
  void set_status(absl::Status status) { status_.Update(std::move(status)); }
  // The callee's worker; an empty Worker if the destination is unknown.
  const Worker& to() const { return *to_; }
  proto::Request& request();
  // The time by which the call ends, on Clock::system().
  absl::Time deadline() const;

  // As OutgoingCall::send().
  uint64_t send(OutgoingCall::Completion done);

 private:
  GroupCall& group_;
  const std::unique_ptr<RequestParts> parts_;
  const Worker* to_;
  bool sent_ = false;
  absl::Status status_;
};

}  // namespace gradwire::rpc
