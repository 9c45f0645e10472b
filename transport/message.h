#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace gradwire::transport {

// A piece of memory that travels as it is, never copied into the header. Copyable; copies share the memory,
// which lives until the last of them is gone.
class Buffer {
 public:
  enum class Sharing {
    // Nobody changes the bytes any more: they may be read at any later time.
    kOwned,
    // The bytes belong to a caller who may change them once his call has returned; see Connection::capture.
    kBorrowed,
    // Received: the process that sent the bytes can still write to them, though it has promised not to. What
    // must hold for memory safety is to be checked on a copy.
    kForeign,
  };

  Buffer() = default;
  Buffer(void* data, std::size_t size, std::shared_ptr<void> owner, Sharing sharing = Sharing::kOwned)
      : data_(data), size_(size), owner_(std::move(owner)), sharing_(sharing) {}

  void* data() const { return data_; }
  std::size_t size() const { return size_; }
  Sharing sharing() const { return sharing_; }
  const std::shared_ptr<void>& owner() const { return owner_; }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
  std::shared_ptr<void> owner_;
  Sharing sharing_ = Sharing::kOwned;
};

// What a connection moves: a header of any bytes, and buffers. Received buffers are aligned to 64 bytes,
// belong to the receiver alone, stay valid after connection, transport and sender are gone, and their release
// takes no lock and sends nothing.
struct Message {
  std::string header;
  std::vector<Buffer> buffers;

  std::size_t byte_size() const {
    std::size_t total = header.size();
    for (const Buffer& buffer : buffers) total += buffer.size();
    return total;
  }
};

}  // namespace gradwire::transport
