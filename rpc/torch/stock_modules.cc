#include "gradwire/rpc/stock_modules.h"

#include "gradwire/codec/codec_containers.h"

namespace gradwire::rpc {

GRADWIRE_STOCK_MODULES(GRADWIRE_RPC_MODULE)

}  // namespace gradwire::rpc
