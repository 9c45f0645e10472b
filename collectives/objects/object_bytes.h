#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/codec.h"
#include "gradwire/codec/encoder.h"

namespace gradwire::collectives {

// The maximum size of all encoded objects of one call together.
inline constexpr int64_t kMaxObjectBytes = int64_t{1} << 34;

// Returns an encoded value as one tensor of bytes: the payload, followed by the memory of its tensors.
// Errors: InvalidArgument for a value that cannot be sent.
absl::StatusOr<at::Tensor> pack_payload(rpc::Encoder& encoder);

// The inverse of pack_payload. `bytes` is untrusted: it comes from another process. Errors: InvalidArgument
// for malformed bytes.
absl::StatusOr<rpc::IncomingPayload> unpack_payload(const at::Tensor& bytes);

// Encodes an object with its Codec. Errors: as pack_payload, and the errors of the Codec.
template <class T>
absl::StatusOr<at::Tensor> pack_object(const T& object) {
  proto::Payload payload;
  rpc::Encoder encoder(payload, nullptr);
  GRADWIRE_RETURN_IF_ERROR(rpc::encode_value<T>(object, encoder, *payload.add_values()));
  return pack_payload(encoder);
}

// The inverse of pack_object. Errors: InvalidArgument if the bytes are malformed or do not hold a T.
template <class T>
absl::StatusOr<T> unpack_object(const at::Tensor& bytes) {
  GRADWIRE_ASSIGN_OR_RETURN(const rpc::IncomingPayload in, unpack_payload(bytes));
  rpc::Decoder decoder = in.decoder();
  return rpc::decode_value<T>(in.payload->values(0), decoder);
}

}  // namespace gradwire::collectives
