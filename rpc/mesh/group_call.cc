#include "gradwire/rpc/mesh/group_call.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/encoded_tensors.h"
#include "gradwire/codec/tensor_set.h"
#include "gradwire/rpc/caller/caller.h"
#include "gradwire/rpc/caller/request_steps.h"
#include "gradwire/rpc/rref/service.h"

namespace gradwire::rpc {

struct GroupCall::Shared {
  // The tensors that belong to the graph. Which ones require grad follows from them.
  google::protobuf::RepeatedField<uint32_t> graph;
  google::protobuf::RepeatedPtrField<proto::Tensor> tensors;
  std::vector<transport::Buffer> buffers;
};

GroupCall::GroupCall(Caller& caller, std::string callee, std::size_t members)
    : caller_(caller),
      callee_(std::move(callee)),
      members_(members),
      started_(Clock::system().now()),
      encoder_(*request_.mutable_arguments(), &references_) {}

GroupCall::~GroupCall() = default;

absl::StatusOr<uint32_t> GroupCall::NotedReferences::add(const std::shared_ptr<RRefHandle>& handle,
                                                         proto::Payload&) {
  handles.push_back({handle});
  return static_cast<uint32_t>(handles.size() - 1);
}

void GroupCall::add_reference_of_each(std::vector<std::shared_ptr<RRefHandle>> handles) {
  if (handles.size() != members_) {
    set_status(absl::InvalidArgumentError(absl::StrCat("an argument has ", handles.size(),
                                                       " references, expected one for each of the ", members_,
                                                       " members")));
    return;
  }
  request_.mutable_arguments()->add_values()->set_reference(
      static_cast<uint32_t>(references_.handles.size()));
  references_.handles.push_back(std::move(handles));
}

// Tensors on devices, and tensors that go to devices, take another way to each receiver. They are encoded for
// each of them, and so are CPU tensors in a program with devices.
absl::Status GroupCall::encode(const Worker& to, const DeviceMap* map, bool repeatable,
                               proto::Payload& payload, EncodedTensors& encoded) {
  const AgentDevices& devices = caller_.runtime().devices;
  if (map == nullptr && !devices.any()) return encode_shared(payload, encoded);
  DeviceRoute route = devices.route_to(to, map);
  route.as_bytes |= repeatable;
  MutexLock lock(mutex_);
  return tensor_backend()->encode(*tensors_, repeatable ? TensorSharing::kCapture : TensorSharing::kBorrow,
                                  &route, payload, encoded);
}

absl::Status GroupCall::encode_shared(proto::Payload& payload, EncodedTensors& encoded) {
  const auto& graph = payload.graph().tensors();
  MutexLock lock(mutex_);
  if (shared_ != nullptr &&
      std::equal(graph.begin(), graph.end(), shared_->graph.begin(), shared_->graph.end())) {
    *payload.mutable_tensors() = shared_->tensors;
    encoded.buffers = shared_->buffers;
    return absl::OkStatus();
  }
  // Without a caller that waits, bytes that a connection has not sent at once must be copied. One copy is
  // made here for all members. A single call leaves that to its connection, which copies only what it has to.
  const bool may_be_repeated = idempotent_ && caller_.runtime().options.retry.max_attempts > 1;
  const bool lends = (borrow_ || members_ == 1) && !may_be_repeated;
  GRADWIRE_RETURN_IF_ERROR(tensor_backend()->encode(
      *tensors_, lends ? TensorSharing::kBorrow : TensorSharing::kCapture, nullptr, payload, encoded));
  shared_ = std::make_unique<Shared>(Shared{graph, payload.tensors(), encoded.buffers});
  return absl::OkStatus();
}

MemberCall::MemberCall(GroupCall& group, const Destination& to, std::size_t index)
    : group_(group), parts_(std::make_unique<RequestParts>(group.caller_.rrefs())), to_(nullptr) {
  status_ = group.status_;
  if (!group.has_taken_tensors_) {
    group.tensors_ = group.encoder_.take_tensors();
    group.has_taken_tensors_ = true;
  }
  request() = group.request_;
  to_ = &open_request(group.caller_, to, group.callee_, group.started_, *parts_, status_);
  for (const auto& handles : group.references_.handles) {
    if (!status_.ok()) break;
    const std::shared_ptr<RRefHandle>& handle = handles[handles.size() == 1 ? 0 : index];
    status_.Update(parts_->references.add(handle, *request().mutable_arguments()).status());
  }
}

MemberCall::~MemberCall() {
  if (!sent_) group_.caller_.rrefs().undo(request().arguments(), *to_);
}

proto::Request& MemberCall::request() { return parts_->request(); }

absl::Time MemberCall::deadline() const { return parts_->call->deadline; }

uint64_t MemberCall::send(OutgoingCall::Completion done) {
  sent_ = true;
  const auto is_repeatable = [this] {
    return group_.idempotent_ && may_repeat(group_.caller_.runtime(), request(), *to_);
  };
  const auto encode = [this](const DeviceMap* map, bool repeatable, EncodedTensors& encoded) {
    return group_.encode(*to_, map, repeatable, *request().mutable_arguments(), encoded);
  };
  return send_request({.caller = group_.caller_,
                       .parts = *parts_,
                       .to = *to_,
                       .borrow = group_.borrow_,
                       .joins_context = group_.joins_context_,
                       .tensors = group_.tensors_.get(),
                       .is_repeatable = is_repeatable,
                       .encode = encode},
                      status_, std::move(done));
}

}  // namespace gradwire::rpc
