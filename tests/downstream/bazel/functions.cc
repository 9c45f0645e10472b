#include "functions.h"

#include "gradwire/rpc/rpc.h"

namespace downstream {

at::Tensor scale(const at::Tensor& x, double by) { return x * by; }
GRADWIRE_RPC(scale)

}  // namespace downstream
