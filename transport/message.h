#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace gradwire::transport {

// A piece of memory that is sent without being copied into the header. Copyable; copies share the memory,
// which lives until the last copy is destroyed.
class Buffer {
 public:
  enum class Sharing {
    // The bytes do not change any more: they may be read at any later time.
    kOwned,
    // The bytes belong to the caller, which may modify them after its call has returned; see
    // Connection::capture().
    kBorrowed,
    // Received bytes in memory that the sending process can still write to, although it must not. Checks on
    // which memory safety depends must be made on a copy.
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

// The unit of transfer: a header of arbitrary bytes, and buffers. Received buffers are aligned to 64 bytes
// and belong only to the receiver. They stay valid after the connection, the transport and the sender are
// gone. Releasing them sends nothing and waits for nothing.
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
