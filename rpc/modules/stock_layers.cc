#include "gradwire/codec/codec_containers.h"
#include "gradwire/rpc/stock_modules.h"

namespace gradwire::rpc {

GRADWIRE_STOCK_LINEAR_MODULES(GRADWIRE_RPC_LAYER)
GRADWIRE_STOCK_ACTIVATIONS(GRADWIRE_RPC_LAYER)
GRADWIRE_STOCK_POOLING_MODULES(GRADWIRE_RPC_LAYER)
GRADWIRE_STOCK_LAYERS(GRADWIRE_RPC_LAYER)
GRADWIRE_RPC_LAYER(torch::nn::TransformerEncoderLayerImpl, torch::nn::TransformerEncoderLayerOptions)
GRADWIRE_RPC_LAYER(torch::nn::TransformerEncoderImpl, torch::nn::TransformerEncoderOptions)

GRADWIRE_RPC_MODULE(SequentialImpl, Layers)
GRADWIRE_RPC_LAYER(SequentialImpl, Layers)

}  // namespace gradwire::rpc
