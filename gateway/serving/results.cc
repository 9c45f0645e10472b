#include "gradwire/gateway/serving/results.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/gateway/serving/core.h"
#include "gradwire/gateway/values/utf8.h"
#include "gradwire/rpc/rref/handle.h"

namespace gradwire::gateway {
namespace {

// In a call with chunks, tensors up to this size stay in the response, and all of them together up to the
// second one.
constexpr std::size_t kInlineTensor = std::size_t{64} << 10;
constexpr std::size_t kInlineTensors = std::size_t{1} << 20;

absl::Status too_large(std::size_t size, bool chunks) {
  return limit_error(
      absl::StrCat("the call has run, but its result has ", size, " bytes, which do not fit into one message",
                   chunks ? "; only tensors come in chunks" : ": use CallChunked"),
      "max_unary_bytes", "CallChunked", kMaxUnaryBytes);
}

}  // namespace

absl::Status no_tensor_bridge() {
  return absl::UnimplementedError(
      "this gateway was linked without libtorch, so it has no tensors: link //gateway");
}

absl::Status keep_reference(Session* session, std::shared_ptr<rpc::RRefHandle> reference, v1::Handle& out) {
  if (session == nullptr) {
    return absl::FailedPreconditionError(
        "the call has run, but its result contains references, which need a session: open one with "
        "OpenSession, and set `session`");
  }
  out.set_type(printable(reference->type()));
  out.set_worker(printable(reference->owner().name));
  GRADWIRE_ASSIGN_OR_RETURN(std::string id, session->add(std::move(reference)));
  out.set_id(std::move(id));
  return absl::OkStatus();
}

absl::Status ResultReader::read(const proto::Value& value, const Type& type, const std::string& worker,
                                v1::CallResponse& response) {
  GRADWIRE_RETURN_IF_ERROR(from_wire(value, type, *this, *response.mutable_result()));
  response.set_worker(worker);
  const std::size_t size = response.ByteSizeLong();
  return size > kMaxUnaryBytes ? too_large(size, chunked_ != nullptr) : absl::OkStatus();
}

absl::Status ResultReader::take_tensor(uint32_t index, v1::Tensor& out) {
  TensorBridge* const bridge = tensor_bridge();
  if (bridge == nullptr || in_.tensors == nullptr) return no_tensor_bridge();
  GRADWIRE_ASSIGN_OR_RETURN(TensorBytes tensor, bridge->read(*in_.tensors, index));
  const std::size_t size = tensor.bytes.size();
  GRADWIRE_RETURN_IF_ERROR(permit_.add_bytes(size));
  bytes_ += size;
  out.set_dtype(tensor.dtype);
  out.mutable_shape()->Add(tensor.shape.begin(), tensor.shape.end());
  if (chunked_ == nullptr) {
    if (size > kMaxUnaryBytes) return too_large(size, false);
  } else if (size > kInlineTensor || inline_ + size > kInlineTensors) {
    out.set_chunked(true);
    chunked_->push_back(std::move(tensor));
    return absl::OkStatus();
  }
  inline_ += size;
  if (size > 0) out.set_data(tensor.bytes.data(), size);
  return absl::OkStatus();
}

absl::Status ResultReader::take_reference(uint32_t index, v1::Handle& out) {
  if (index >= in_.references.size()) {
    return absl::InvalidArgumentError("malformed answer: the index of a reference is out of range");
  }
  return keep_reference(session_, in_.references[index], out);
}

}  // namespace gradwire::gateway
