#include "rpc/stock_modules.h"

#include <cstdint>
#include <vector>

#include "rpc/codec_containers.h"

namespace gradwire::rpc {

GRADWIRE_RPC_MODULE(torch::nn::LinearImpl, int64_t, int64_t)
GRADWIRE_RPC_MODULE(torch::nn::FlattenImpl)
GRADWIRE_RPC_MODULE(torch::nn::Conv1dImpl, int64_t, int64_t, int64_t)
GRADWIRE_RPC_MODULE(torch::nn::Conv2dImpl, int64_t, int64_t, int64_t)
GRADWIRE_RPC_MODULE(torch::nn::EmbeddingImpl, int64_t, int64_t)
GRADWIRE_RPC_MODULE(torch::nn::LayerNormImpl, std::vector<int64_t>)
GRADWIRE_RPC_MODULE(torch::nn::LSTMImpl, int64_t, int64_t)
GRADWIRE_RPC_MODULE(torch::nn::DropoutImpl, double)
GRADWIRE_RPC_MODULE(torch::nn::ReLUImpl)
GRADWIRE_RPC_MODULE(torch::nn::GELUImpl)
GRADWIRE_RPC_MODULE(torch::nn::TanhImpl)
GRADWIRE_RPC_MODULE(torch::nn::SigmoidImpl)
GRADWIRE_RPC_MODULE(torch::nn::SoftmaxImpl, int64_t)

}  // namespace gradwire::rpc
