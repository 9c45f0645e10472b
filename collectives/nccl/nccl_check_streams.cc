// The checks of streams. A kernel that sleeps for a tenth of a second stands for the caller's earlier work:
// an operation that did not wait for it would read the old values.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <cstdio>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/collectives/nccl/nccl_check_operations.h"

namespace gradwire::collectives::nccl_check {
namespace {

constexpr absl::Duration kSleep = absl::Milliseconds(100);

at::Tensor ones_on(c10::Device device) { return at::ones({1 << 16}, at::TensorOptions().device(device)); }

// The operation waits for the current stream, wait() orders the current stream behind it, and neither blocks
// the host.
void check_order(const Group& group, int size, c10::Device device) {
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool(false, device.index()));
  at::Tensor tensor = ones_on(device);
  group->all_reduce(tensor);
  c10::cuda::device_synchronize();
  tensor.fill_(1);
  sleep_on_device(kSleep);
  tensor.add_(1);
  const absl::Time begun = absl::Now();
  const auto work = group->all_reduce_async(tensor);
  const bool enqueued = work->is_completed();
  work->wait();
  const absl::Duration blocked = absl::Now() - begun;
  at::Tensor after = tensor + 1;
  check(enqueued, "is_completed() means enqueued");
  check(blocked < kSleep / 2,
        absl::StrCat("wait() does not block the host: ", absl::FormatDuration(blocked)));
  same(after, at::full({1 << 16}, 2.0f * static_cast<float>(size) + 1), "work after wait() sees the result");
}

// The caller drops the tensor before the operation has run. Its memory must not be given away before that.
void check_memory(const Group& group, c10::Device device) {
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool(false, device.index()));
  at::Tensor kept = at::zeros({1 << 16}, at::TensorOptions().device(device));
  std::vector<at::Tensor> outputs;
  for (int i = 0; i < group->size(); ++i) outputs.push_back(at::zeros_like(kept));
  std::shared_ptr<Work> work;
  {
    at::Tensor dropped = ones_on(device);
    sleep_on_device(kSleep);
    work = group->all_gather_async(outputs, dropped);
  }
  // Takes the memory of the dropped tensor, if the allocator gives it away now.
  at::Tensor other = at::full({1 << 16}, 7.0, at::TensorOptions().device(device));
  work->wait();
  for (const at::Tensor& output : outputs) {
    same(output, at::ones({1 << 16}), "the memory of a dropped tensor is kept");
  }
}

void check_capture(const Group& group, c10::Device device) {
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool(false, device.index()));
  at::Tensor tensor = ones_on(device);
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device.index());
  cudaGraph_t graph = nullptr;
  if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess) return;
  const absl::Status status = error_of([&] { group->all_reduce(tensor); });
  (void)cudaStreamEndCapture(stream, &graph);
  if (graph != nullptr) (void)cudaGraphDestroy(graph);
  check(status.code() == absl::StatusCode::kFailedPrecondition,
        absl::StrCat("a collective in a CUDA graph is refused: ", status.ToString()));
  group->all_reduce(tensor);
  check(group->size() > 0, "the group is usable after the refusal");
}

}  // namespace

void check_streams(int size) {
  std::vector<int> devices;
  for (int i = 0; i < size; ++i) devices.push_back(i);
  run_world(devices, absl::Minutes(2), [size](const Group& group, int rank) {
    const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(rank));
    check_order(group, size, device);
    check_memory(group, device);
    check_capture(group, device);
  });
  // The default backends: cpu for CPU tensors, nccl for CUDA tensors.
  run_world(
      devices, absl::Minutes(2),
      [size](const Group& group, int rank) {
        at::Tensor on_gpu = ones_on(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(rank)));
        at::Tensor on_host = at::ones({8});
        group->all_reduce(on_gpu);
        group->all_reduce(on_host);
        same(on_gpu, at::full({1 << 16}, static_cast<float>(size)), "default backends, cuda tensor");
        same(on_host, at::full({8}, static_cast<float>(size)), "default backends, cpu tensor");
        group->barrier({rank});
      },
      /*backend=*/"");
  // The cpu backend alone copies CUDA tensors through the memory of the host.
  run_world(
      devices, absl::Minutes(2),
      [size](const Group& group, int rank) {
        const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(rank));
        const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool(false, device.index()));
        at::Tensor tensor = ones_on(device);
        sleep_on_device(kSleep);
        tensor.add_(1);
        group->all_reduce_async(tensor)->wait();
        same(tensor + 1, at::full({1 << 16}, 2.0f * static_cast<float>(size) + 1),
             "cpu backend, cuda tensor");
      },
      /*backend=*/"cpu");
  std::printf("streams on %d ranks: done\n", size);
}

}  // namespace gradwire::collectives::nccl_check
