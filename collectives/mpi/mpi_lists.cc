#include "gradwire/collectives/mpi/mpi_lists.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstring>

namespace gradwire::collectives {
namespace {

at::Tensor byte_view(const at::Tensor& tensor, int64_t offset, int64_t bytes) {
  return at::from_blob(bytes_of(tensor, offset), {bytes}, tensor.options().dtype(at::kByte));
}

void copy_part(const at::Tensor& from, int64_t from_offset, const at::Tensor& into, int64_t into_offset,
               int64_t bytes) {
  if (from.is_cpu() && into.is_cpu()) {
    std::memmove(bytes_of(into, into_offset), bytes_of(from, from_offset), static_cast<std::size_t>(bytes));
    return;
  }
  const c10::InferenceMode no_grad;
  byte_view(into, into_offset, bytes).copy_(byte_view(from, from_offset, bytes));
}

}  // namespace

bool is_one_buffer(const std::vector<at::Tensor>& list) {
  for (std::size_t i = 1; i < list.size(); ++i) {
    if (bytes_of(list[i]) != bytes_of(list[i - 1], static_cast<int64_t>(list[i - 1].nbytes()))) return false;
  }
  return true;
}

bool overlaps(const at::Tensor& tensor, const std::vector<at::Tensor>& list) {
  const char* begin = bytes_of(tensor);
  const char* end = begin + tensor.nbytes();
  for (const at::Tensor& other : list) {
    const char* others = bytes_of(other);
    if (begin < others + other.nbytes() && others < end) return true;
  }
  return false;
}

at::Tensor make_buffer(int64_t size, int64_t bytes, const at::Tensor& like) {
  return at::empty({size * bytes}, like.options().dtype(at::kByte).requires_grad(false));
}

void pack(const std::vector<at::Tensor>& list, int64_t offset, int64_t bytes, const at::Tensor& buffer) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    copy_part(list[i], offset, buffer, static_cast<int64_t>(i) * bytes, bytes);
  }
}

void unpack(const at::Tensor& buffer, int64_t offset, int64_t bytes, const std::vector<at::Tensor>& list) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    copy_part(buffer, static_cast<int64_t>(i) * bytes, list[i], offset, bytes);
  }
}

void copy_bytes(const at::Tensor& from, const at::Tensor& into) {
  copy_part(from, 0, into, 0, static_cast<int64_t>(from.nbytes()));
}

void synchronize(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return;
  const c10::impl::VirtualGuardImpl device(tensor.device().type());
  device.synchronizeStream(device.getStream(tensor.device()));
}

}  // namespace gradwire::collectives
