#include "gradwire/tests/device/copy.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "gradwire/tests/device/allocator.h"
#include "gradwire/tests/device/raw_tensor.h"
#include "gradwire/tests/device/runtime.h"

namespace gradwire::lag {
namespace {

bool on_device(const at::Tensor& tensor) { return tensor.device().type() == c10::DeviceType::PrivateUse1; }

// A kernel that copies. It owns the storage of pageable host memory, which nothing else keeps.
struct CopyKernel {
  RawTensor from;
  RawTensor to;
  c10::Storage host;

  void operator()() const {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    RawTensors tensors(c10::DispatchKey::CPU);
    const at::Tensor source = tensors.make(from);
    tensors.make(to).copy_(source);
  }
};

void copy_between_devices(const at::Tensor& from, const at::Tensor& to) {
  Stream& source = current_stream(from.device().index());
  Stream& destination = current_stream(to.device().index());
  if (&source != &destination) check(source.wait(destination.end()));
  check(source.launch(CopyKernel{RawTensor(from), RawTensor(to), {}}));
  if (&source != &destination) check(destination.wait(source.end()));
}

void copy_from_host(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  Stream& stream = current_stream(to.device().index());
  CopyKernel kernel{RawTensor(from), RawTensor(to), {}};
  if (non_blocking && !accelerator().host_memory().record(from.storage().data(), stream)) {
    const at::Tensor staged = from.clone();
    kernel.from = RawTensor(staged);
    kernel.host = staged.storage();
  }
  check(stream.launch(std::move(kernel)));
  if (!non_blocking) check(stream.synchronize("copy"));
}

void copy_to_host(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  Stream& stream = current_stream(from.device().index());
  CopyKernel kernel{RawTensor(from), RawTensor(to), {}};
  if (non_blocking && !accelerator().host_memory().record(to.storage().data(), stream)) {
    kernel.host = to.storage();
  }
  check(stream.launch(std::move(kernel)));
  if (!non_blocking) check(stream.synchronize("copy"));
}

}  // namespace

void copy_tensor(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (to.numel() == 0) return;
  if (on_device(from) && on_device(to)) {
    copy_between_devices(from, to);
  } else if (on_device(to)) {
    TORCH_CHECK(from.device().is_cpu(), "cannot copy from ", from.device(), " to ", to.device());
    copy_from_host(from, to, non_blocking);
  } else {
    TORCH_CHECK(to.device().is_cpu(), "cannot copy from ", from.device(), " to ", to.device());
    copy_to_host(from, to, non_blocking);
  }
}

void resize_storage(const c10::Storage& storage, size_t bytes) {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  TORCH_CHECK(impl->resizable(), "the storage cannot be resized, because it was not allocated by libtorch");
  const int device = index_of(storage.device());
  c10::DataPtr data = allocate(device, bytes);
  const size_t count = std::min(bytes, impl->nbytes());
  void* to = data.get();
  const void* from = storage.data();
  if (count > 0) {
    check(current_stream(device).launch([to, from, count] { std::memcpy(to, from, count); }));
  }
  // The old memory is freed here. It was allocated on this stream, or is used on it without record_stream(),
  // as with CUDA.
  impl->set_data_ptr_noswap(std::move(data));
  impl->set_nbytes(bytes);
}

}  // namespace gradwire::lag
