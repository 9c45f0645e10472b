#include "gradwire/codec/codec_containers.h"
#include "gradwire/rpc/stock_modules.h"

namespace gradwire::rpc {

GRADWIRE_STOCK_ACTIVATIONS(GRADWIRE_RPC_MODULE)

}  // namespace gradwire::rpc
