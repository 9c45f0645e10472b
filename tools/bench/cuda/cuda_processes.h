#pragma once

#include <memory>

#include "absl/status/status.h"
#include "gradwire/tools/bench/run/bench_process.h"

namespace gradwire::bench {

// OK if this program was built with CUDA and finds a GPU.
absl::Status find_gpu();

// The systems of the suite cuda: Gradwire, torch's TensorPipeAgent with its channels for CUDA, and the GPU's
// own copies as the lower bound. Each returns nullptr in a program without CUDA.
std::unique_ptr<BenchProcess> make_gradwire_cuda();
std::unique_ptr<BenchProcess> make_torch_cuda();
std::unique_ptr<BenchProcess> make_floor_cuda_copy();

}  // namespace gradwire::bench
