#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

#include "absl/strings/str_cat.h"
#include "gradwire/tools/bench/cuda/cuda_cases.h"
#include "gradwire/tools/bench/cuda/cuda_processes.h"
#include "gradwire/tools/bench/run/measure.h"

namespace gradwire::bench {
namespace {

// The GPU itself needs this for an echo: one copy from memory to memory each way.
class FloorCudaCopy final : public BenchProcess {
 public:
  void join(const Endpoint& /*endpoint*/) override { begin_cuda(); }

  Measurement run(const Task& task) override {
    const int64_t floats = (int64_t{64} << 20) / 4;
    const auto options = at::TensorOptions().dtype(at::kFloat).device(kGpu);
    at::Tensor here = at::empty({floats}, options);
    at::Tensor there = at::empty({floats}, options);
    at::Tensor back = at::empty({floats}, options);
    return measure(
        {.seconds = task.seconds, .large = true},
        [&](int64_t i) {
          here.fill_(static_cast<double>(i & 0xff));
          finish_stream();
        },
        [&](int64_t) {
          copy(there, here);
          copy(back, there);
          finish_stream();
        },
        [&](int64_t) {
          if (!(back == here).all().item<bool>()) throw std::runtime_error("wrong contents of a copy");
        });
  }

 private:
  static void copy(const at::Tensor& to, const at::Tensor& from) {
    const cudaError_t result =
        cudaMemcpyAsync(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes(), cudaMemcpyDeviceToDevice,
                        c10::cuda::getCurrentCUDAStream(kGpu.index()).stream());
    if (result != cudaSuccess) {
      throw std::runtime_error(absl::StrCat("cudaMemcpyAsync failed: ", cudaGetErrorString(result)));
    }
  }
};

}  // namespace

absl::Status find_gpu() {
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  if (found == cudaSuccess && count > 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("CUDA finds no GPU", found == cudaSuccess ? "" : ": ",
                                             found == cudaSuccess ? "" : cudaGetErrorString(found)));
}

std::unique_ptr<BenchProcess> make_floor_cuda_copy() { return std::make_unique<FloorCudaCopy>(); }

}  // namespace gradwire::bench
