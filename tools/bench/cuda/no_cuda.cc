#include "gradwire/tools/bench/cuda/cuda_processes.h"

// For programs that are built without CUDA.
namespace gradwire::bench {

absl::Status find_gpu() {
  return absl::UnavailableError("this program was built without CUDA; build it with --config=cuda");
}
std::unique_ptr<BenchProcess> make_gradwire_cuda() { return nullptr; }
std::unique_ptr<BenchProcess> make_torch_cuda() { return nullptr; }
std::unique_ptr<BenchProcess> make_floor_cuda_copy() { return nullptr; }

}  // namespace gradwire::bench
