#include "gradwire/device/cuda/cuda_event.h"

#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/device/cuda/cuda_calls.h"

namespace gradwire::device::cuda {
namespace {

// Owns an event. An event that was opened is destroyed in the same way as one that was made here.
class CudaSharedEvent final : public SharedEvent {
 public:
  CudaSharedEvent(c10::Device device, cudaEvent_t event) : device_(device), event_(event) {}
  ~CudaSharedEvent() override {
    // An error means that the process ends or that the GPU is lost, and the event with it.
    (void)on_device(device_, "destroying a shared event",
                    [this] { return cuda_status(cudaEventDestroy(event_), "cudaEventDestroy", device_); });
  }
  CudaSharedEvent(const CudaSharedEvent&) = delete;
  CudaSharedEvent& operator=(const CudaSharedEvent&) = delete;

  const std::string& handle() const override { return handle_; }
  void set_handle(std::string handle) { handle_ = std::move(handle); }

  absl::Status record(const c10::Stream& stream) override {
    return on_device(device_, "recording a shared event", [&] {
      return cuda_status(cudaEventRecord(event_, c10::cuda::CUDAStream(stream).stream()), "cudaEventRecord",
                         device_);
    });
  }

  absl::Status block(const c10::Stream& stream) override {
    // The stream may be on another device than the event.
    return on_device(stream.device(), "waiting for a shared event", [&] {
      return cuda_status(cudaStreamWaitEvent(c10::cuda::CUDAStream(stream).stream(), event_, 0),
                         "cudaStreamWaitEvent", stream.device());
    });
  }

 private:
  const c10::Device device_;
  const cudaEvent_t event_;
  std::string handle_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SharedEvent>> make_shared_event(c10::Device device) {
  return on_device(device, "making a shared event", [&]() -> absl::StatusOr<std::unique_ptr<SharedEvent>> {
    cudaEvent_t event = nullptr;
    // CUDA demands that a shared event measures no time.
    GRADWIRE_RETURN_IF_ERROR(
        cuda_status(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventInterprocess),
                    "cudaEventCreateWithFlags", device));
    auto made = std::make_unique<CudaSharedEvent>(device, event);
    cudaIpcEventHandle_t handle{};
    GRADWIRE_RETURN_IF_ERROR(
        cuda_status(cudaIpcGetEventHandle(&handle, event), "cudaIpcGetEventHandle", device));
    made->set_handle(std::string(handle.reserved, sizeof(handle.reserved)));
    return made;
  });
}

absl::StatusOr<std::unique_ptr<SharedEvent>> open_shared_event(c10::Device device,
                                                               const std::string& handle) {
  cudaIpcEventHandle_t wanted{};
  if (handle.size() != sizeof(wanted.reserved)) {
    return absl::InvalidArgumentError(absl::StrCat("wrong handle of a shared event: got ", handle.size(),
                                                   " bytes, expected ", sizeof(wanted.reserved)));
  }
  std::memcpy(wanted.reserved, handle.data(), handle.size());
  return on_device(device, "opening a shared event", [&]() -> absl::StatusOr<std::unique_ptr<SharedEvent>> {
    cudaEvent_t event = nullptr;
    GRADWIRE_RETURN_IF_ERROR(
        cuda_status(cudaIpcOpenEventHandle(&event, wanted), "cudaIpcOpenEventHandle", device));
    auto opened = std::make_unique<CudaSharedEvent>(device, event);
    opened->set_handle(handle);
    return opened;
  });
}

}  // namespace gradwire::device::cuda
