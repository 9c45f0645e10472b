#include "gradwire/device/streams.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <exception>

namespace gradwire::device {

bool has_streams(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.is_cpu() && at::accelerator::isAccelerator(tensor.device().type());
}

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

// The event belongs to the device of the stream that records it. Some kinds of devices demand that this
// device is the current one then.
void order(const c10::Stream& earlier, const c10::Stream& later) {
  if (earlier == later) return;
  const c10::DeviceGuard device(earlier.device());
  c10::Event event(earlier.device_type());
  event.record(earlier);
  event.block(later);
}

void for_each_part(const at::Tensor& tensor, const std::function<void(const at::Tensor&)>& visit) {
  if (!has_streams(tensor)) return;
  switch (tensor.layout()) {
    case at::kSparse:
      visit(tensor._indices());
      visit(tensor._values());
      return;
    case at::kSparseCsr:
    case at::kSparseBsr:
      visit(tensor.crow_indices());
      visit(tensor.col_indices());
      visit(tensor.values());
      return;
    case at::kSparseCsc:
    case at::kSparseBsc:
      visit(tensor.ccol_indices());
      visit(tensor.row_indices());
      visit(tensor.values());
      return;
    default:
      if (tensor.has_storage()) visit(tensor);
  }
}

void record_use(const at::Tensor& tensor, const c10::Stream& stream) {
  if (tensor.device() != stream.device()) return;
  for_each_part(tensor, [&stream](const at::Tensor& part) {
    c10::impl::VirtualGuardImpl(stream.device_type())
        .recordDataPtrOnStream(part.storage().data_ptr(), stream);
  });
}

void ready_on_current_stream(const at::Tensor& tensor, const c10::Stream& stream) {
  if (!has_streams(tensor)) return;
  const c10::Stream current = current_stream(tensor.device());
  if (current == stream) return;
  order(stream, current);
  record_use(tensor, current);
}

void StreamSet::add(const c10::Stream& stream) {
  if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end()) streams_.push_back(stream);
}

void StreamSet::order_before_current_streams() const {
  std::exception_ptr first;
  for (const c10::Stream& stream : streams_) {
    try {
      order(stream, current_stream(stream.device()));
    } catch (...) {
      if (first == nullptr) first = std::current_exception();
    }
  }
  if (first != nullptr) std::rethrow_exception(first);
}

}  // namespace gradwire::device
