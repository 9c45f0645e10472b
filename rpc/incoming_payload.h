#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "proto/value.pb.h"
#include "rpc/encoder.h"
#include "rpc/tensor_set.h"

namespace gradwire::rpc {

// A payload that arrived, with what it carried: values, tensors (decoded) and references (registered:
// dropping them gives them back). Movable.
struct IncomingPayload {
  proto::Payload payload;
  std::shared_ptr<TensorSet> tensors;
  std::vector<std::shared_ptr<RRefHandle>> references;

  Decoder decoder() const { return Decoder(payload, tensors, references); }
};

}  // namespace gradwire::rpc
