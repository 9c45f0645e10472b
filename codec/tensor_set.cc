#include "gradwire/codec/tensor_set.h"

namespace gradwire::rpc {
namespace {

constinit TensorBackend* installed = nullptr;

}  // namespace

void install_tensor_backend(TensorBackend* backend) { installed = backend; }
TensorBackend* tensor_backend() { return installed; }

}  // namespace gradwire::rpc
