#include "gradwire/tests/device/raw_tensor.h"

#include <c10/core/TensorImpl.h>

namespace gradwire::lag {

RawTensor::RawTensor(const at::Tensor& tensor)
    : storage(tensor.storage().mutable_data()),
      storage_bytes(tensor.storage().nbytes()),
      offset(tensor.storage_offset()),
      sizes(tensor.sizes().vec()),
      strides(tensor.strides().vec()),
      type(tensor.dtype()),
      conjugate(tensor.is_conj()),
      negative(tensor.is_neg()),
      wrapped_number(tensor.unsafeGetTensorImpl()->is_wrapped_number()) {}

at::Tensor RawTensors::make(const RawTensor& raw) {
  const bool meta = key_ == c10::DispatchKey::Meta;
  c10::Storage& storage = storages_[raw.storage];
  if (!storage) {
    const c10::Device device(meta ? c10::DeviceType::Meta : c10::DeviceType::CPU);
    storage = c10::Storage(c10::Storage::use_byte_size_t(), raw.storage_bytes,
                           c10::DataPtr(meta ? nullptr : raw.storage, device),
                           meta ? c10::GetAllocator(c10::DeviceType::Meta) : nullptr, /*resizable=*/meta);
  }
  at::Tensor tensor =
      at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(key_), raw.type);
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(raw.sizes, raw.strides, raw.offset);
  if (raw.conjugate) impl->_set_conj(true);
  if (raw.negative) impl->_set_neg(true);
  if (raw.wrapped_number) impl->set_wrapped_number(true);
  return tensor;
}

}  // namespace gradwire::lag
