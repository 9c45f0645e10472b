#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/rpc/mesh.h"

namespace gradwire::rpc {

GRADWIRE_RPC_BROADCAST(at::Tensor)

}  // namespace gradwire::rpc
