#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/codec.h"
#include "gradwire/codec/encoder.h"

namespace gradwire::collectives {

// Of the encoded objects of one call, together.
inline constexpr int64_t kMaxObjectBytes = int64_t{1} << 34;

// An encoded value as one tensor of bytes: the payload, and the memory of its tensors behind it.
// InvalidArgument for what cannot travel.
absl::StatusOr<at::Tensor> pack_payload(rpc::Encoder& encoder);

// The way back. Everything in `bytes` is hostile: InvalidArgument.
absl::StatusOr<rpc::IncomingPayload> unpack_payload(const at::Tensor& bytes);

template <class T>
absl::StatusOr<at::Tensor> pack_object(const T& object) {
  proto::Payload payload;
  rpc::Encoder encoder(payload, nullptr);
  GRADWIRE_RETURN_IF_ERROR(rpc::encode_value<T>(object, encoder, *payload.add_values()));
  return pack_payload(encoder);
}

template <class T>
absl::StatusOr<T> unpack_object(const at::Tensor& bytes) {
  GRADWIRE_ASSIGN_OR_RETURN(const rpc::IncomingPayload in, unpack_payload(bytes));
  rpc::Decoder decoder = in.decoder();
  return rpc::decode_value<T>(in.payload->values(0), decoder);
}

}  // namespace gradwire::collectives
