#pragma once

#include <cstddef>
#include <utility>

#include "absl/status/statusor.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/mutex.h"

namespace gradwire::transport {

// A mapping of memory that two processes share. Move-only. The mapping does not need its descriptor any more.
// In a forked child the memory stays as long as the process. Not thread-safe.
class SharedMemory {
 public:
  // Creates anonymous memory whose size cannot be changed. `descriptor` receives the descriptor to pass to
  // the other process. `huge`: with huge pages if the system allows them. ResourceExhausted, which names
  // the limit, if the system has no descriptor or memory left or limits the size of files; Unavailable for
  // other causes.
  static absl::StatusOr<SharedMemory> create(std::size_t bytes, bool huge, Descriptor& descriptor);

  // Maps memory that another process has created. InvalidArgument unless it has exactly that size and cannot
  // shrink: access to missing memory would kill this process. ResourceExhausted if this process has no room
  // for the mapping.
  static absl::StatusOr<SharedMemory> adopt(const Descriptor& descriptor, std::size_t bytes, bool huge);

  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        mark_(other.mark_) {}
  SharedMemory& operator=(SharedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(mark_, other.mark_);
    return *this;
  }
  ~SharedMemory();

  // A forked child will not have the memory, which is part of a protocol between two processes. An access
  // there ends the child.
  void keep_from_children() const;

  char* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  SharedMemory(char* data, std::size_t size) : data_(data), size_(size) {}
  static absl::StatusOr<SharedMemory> map(int descriptor, std::size_t bytes, bool huge);

  char* data_ = nullptr;
  std::size_t size_ = 0;
  ProcessMark mark_;
};

}  // namespace gradwire::transport
