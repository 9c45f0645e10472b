#include "gradwire/collectives/objects.h"

#include <ATen/ops/empty.h>

#include <utility>

namespace gradwire::collectives::objects_internal {
namespace {

// Sent instead of a size: the object could not be encoded.
constexpr int64_t kNoObject = -1;

// The memory that the messages of a group use: that of the host, unless the group has only the nccl backend.
at::TensorOptions options_for(const ProcessGroup& group, at::ScalarType dtype) {
  return at::TensorOptions().dtype(dtype).device(group.backend() == Backend::kNccl ? at::kCUDA : at::kCPU);
}

}  // namespace

std::shared_ptr<Work> run(ObjectExchange exchange, const absl::Status& why, bool later, const Group& group) {
  if (later) return group->exchange_objects_async(std::move(exchange));
  try {
    group->exchange_objects(std::move(exchange));
  } catch (const Error& error) {
    if (why.ok()) throw;
    throw Error(with_context(why, error.status().message()));
  }
  return nullptr;
}

void send(const at::Tensor& bytes, const absl::Status& why, int dst, int tag, const Group& group) {
  const Group in = group_or_world(group);
  const bool fits = bytes.defined() && bytes.numel() <= kMaxObjectBytes;
  at::Tensor size = at::empty({1}, at::kLong);
  *size.mutable_data_ptr<int64_t>() = fits ? bytes.numel() : kNoObject;
  in->send(size.to(options_for(*in, at::kLong).device()), dst, tag);
  if (!bytes.defined()) throw Error(why);
  if (!fits) {
    throw Error(absl::InvalidArgumentError(absl::StrCat("the object is too large: it has ", bytes.numel(),
                                                        " bytes, the limit is ", kMaxObjectBytes, " bytes")));
  }
  in->send(bytes.to(options_for(*in, at::kByte).device()), dst, tag);
}

Received receive(int src, int tag, const Group& group) {
  const Group in = group_or_world(group);
  if (in->rank() < 0) {
    in->recv(at::Tensor(), src, tag);  // Warns that it does nothing.
    return {};
  }
  const at::Tensor announced = at::empty({1}, options_for(*in, at::kLong));
  const int source = in->recv(announced, src, tag);
  const int64_t size = announced.cpu().item<int64_t>();
  if (size == kNoObject) {
    throw Error(absl::InvalidArgumentError(
        absl::StrCat("rank ", source, " could not send its object: it cannot be encoded, or is too large")));
  }
  if (size < 0 || size > kMaxObjectBytes) {
    throw Error(absl::InvalidArgumentError(absl::StrCat(
        "invalid size of the object of rank ", source, ": got ", size, ", expected 0 to ", kMaxObjectBytes)));
  }
  const at::Tensor bytes = at::empty({size}, options_for(*in, at::kByte));
  in->recv(bytes, source, tag);
  return {bytes.cpu(), source};
}

}  // namespace gradwire::collectives::objects_internal
