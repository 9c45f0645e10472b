#pragma once

#include <cstddef>
#include <utility>

#include "absl/status/statusor.h"
#include "gradwire/base/io/descriptor.h"

namespace gradwire::transport {

// A mapping of memory that two processes share. Move-only. The mapping does not need its descriptor any more.
// Not thread-safe.
class SharedMemory {
 public:
  // Creates anonymous memory whose size cannot be changed. `descriptor` receives the descriptor to pass to
  // the other process. `huge`: with huge pages if the system allows them. Unavailable with the cause.
  static absl::StatusOr<SharedMemory> create(std::size_t bytes, bool huge, Descriptor& descriptor);

  // Maps memory that another process has created. InvalidArgument unless it has exactly that size and cannot
  // shrink: access to missing memory would kill this process. Unavailable if it cannot be mapped.
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
