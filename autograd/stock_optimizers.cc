// Registers libtorch's optimizers, so that owners can construct them.
#include "gradwire/autograd/distributed_optimizer.h"

namespace gradwire::autograd {

GRADWIRE_OPTIMIZER(torch::optim::SGD)
GRADWIRE_OPTIMIZER(torch::optim::Adam)
GRADWIRE_OPTIMIZER(torch::optim::AdamW)
GRADWIRE_OPTIMIZER(torch::optim::Adagrad)
GRADWIRE_OPTIMIZER(torch::optim::RMSprop)
GRADWIRE_OPTIMIZER(torch::optim::LBFGS)

}  // namespace gradwire::autograd
