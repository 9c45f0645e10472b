#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/codec.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/codec/encoder.h"
#include "gradwire/codec/tensor_set.h"
#include "gradwire/transport/message.h"

namespace gradwire::rpc {

// A message in the form in which it is sent.
struct WireMessage {
  std::string payload;
  std::vector<transport::Buffer> buffers;
};

// Encodes values as a call does, but without an agent.
class TestSender {
 public:
  explicit TestSender(TensorSharing sharing = TensorSharing::kCapture)
      : sharing_(sharing), encoder_(payload_, nullptr) {}

  Encoder& encoder() { return encoder_; }
  proto::Payload& payload() { return payload_; }

  template <class T, class V>
  absl::Status add(V&& value) {
    return encode_value<T>(std::forward<V>(value), encoder_, *payload_.add_values());
  }

  absl::StatusOr<WireMessage> finish() {
    WireMessage wire;
    if (std::unique_ptr<TensorSet> tensors = encoder_.take_tensors()) {
      GRADWIRE_RETURN_IF_ERROR(tensor_backend()->encode(*tensors, sharing_, payload_, wire.buffers));
    }
    payload_.SerializeToString(&wire.payload);
    return wire;
  }

 private:
  const TensorSharing sharing_;
  proto::Payload payload_;
  Encoder encoder_;
};

inline absl::StatusOr<IncomingPayload> receive(WireMessage wire) {
  IncomingPayload in;
  auto payload = std::make_shared<proto::Payload>();
  if (!payload->ParseFromString(wire.payload)) return absl::InvalidArgumentError("cannot parse the Payload");
  if (payload->tensors_size() != 0) {
    GRADWIRE_ASSIGN_OR_RETURN(in.tensors, tensor_backend()->decode(*payload, std::move(wire.buffers)));
  }
  in.payload = std::move(payload);
  return in;
}

template <class T>
absl::StatusOr<T> decode_first(const IncomingPayload& in) {
  if (in.payload->values_size() == 0) return absl::InvalidArgumentError("the payload has no values");
  Decoder decoder = in.decoder();
  return decode_value<T>(in.payload->values(0), decoder);
}

// Encodes a value of type T and decodes it as an R.
template <class T, class R = T, class V>
absl::StatusOr<R> round_trip(V&& value, TensorSharing sharing = TensorSharing::kCapture) {
  TestSender sender(sharing);
  GRADWIRE_RETURN_IF_ERROR(sender.add<T>(std::forward<V>(value)));
  GRADWIRE_ASSIGN_OR_RETURN(WireMessage wire, sender.finish());
  GRADWIRE_ASSIGN_OR_RETURN(IncomingPayload in, receive(std::move(wire)));
  return decode_first<R>(in);
}

// A type that contains values of its own type, in a chain of `depth` nodes.
struct Chain {
  std::vector<Chain> rest;
  static Chain of(int64_t depth) {
    Chain chain;
    for (int64_t i = 1; i < depth; ++i) {
      Chain longer;
      longer.rest.push_back(std::move(chain));
      chain = std::move(longer);
    }
    return chain;
  }
};

template <>
struct Codec<Chain> {
  static std::string type_name() { return "Chain"; }
  static absl::Status encode(const Chain& value, Encoder& encoder, proto::Value& out) {
    return encode_value<std::vector<Chain>>(value.rest, encoder, out);
  }
  static absl::StatusOr<Chain> decode(const proto::Value& in, Decoder& decoder) {
    GRADWIRE_ASSIGN_OR_RETURN(auto rest, decode_value<std::vector<Chain>>(in, decoder));
    return Chain{std::move(rest)};
  }
};

}  // namespace gradwire::rpc
