#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "gradwire/codec/encoder.h"
#include "gradwire/codec/tensor_set.h"
#include "gradwire/proto/value.pb.h"

namespace gradwire::rpc {

// A payload that arrived, with what it carried: values, tensors (decoded) and references (registered:
// dropping them gives them back). Movable.
struct IncomingPayload {
  // Never nullptr; shares the ownership of the message it came in.
  std::shared_ptr<const proto::Payload> payload{std::shared_ptr<void>(), &proto::Payload::default_instance()};
  std::unique_ptr<TensorSet> tensors;
  std::vector<std::shared_ptr<RRefHandle>> references;

  // For as long as this payload stays where it is.
  Decoder decoder() const { return Decoder(*payload, tensors.get(), references); }
};

}  // namespace gradwire::rpc
