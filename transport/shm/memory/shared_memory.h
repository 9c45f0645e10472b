#pragma once

#include <cstddef>
#include <utility>

#include "absl/status/statusor.h"
#include "gradwire/base/io/descriptor.h"

namespace gradwire::transport {

// Memory that two processes map, from its creation to the end of this mapping. Move-only; the mapping does
// not need the descriptor any more. Not thread-safe.
class SharedMemory {
 public:
  // New anonymous memory whose size nobody can change any more, and in `descriptor` what to hand to the other
  // process. `huge`: in huge pages where the system allows that. Unavailable with the cause.
  static absl::StatusOr<SharedMemory> create(std::size_t bytes, bool huge, Descriptor& descriptor);

  // Maps what another process has made. InvalidArgument unless it is memory of exactly that size which nobody
  // can shrink: to touch memory that is not there would end this process. Unavailable when it cannot be
  // mapped.
  static absl::StatusOr<SharedMemory> adopt(const Descriptor& descriptor, std::size_t bytes, bool huge);

  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  SharedMemory& operator=(SharedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~SharedMemory();

  char* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  SharedMemory(char* data, std::size_t size) : data_(data), size_(size) {}
  static absl::StatusOr<SharedMemory> map(int descriptor, std::size_t bytes, bool huge);

  char* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace gradwire::transport
