#include "rpc/stock_modules.h"

#include "codec/codec_containers.h"

namespace gradwire::rpc {

GRADWIRE_STOCK_MODULES(GRADWIRE_RPC_MODULE)

}  // namespace gradwire::rpc
