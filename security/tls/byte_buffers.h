#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "gradwire/security/tls/certificates/openssl.h"

namespace gradwire::security {

// The bytes that have arrived from a socket and that TLS has not processed yet. Begins small, and grows to
// kMaxBytes while the socket fills it. Not thread-safe.
class ReceivedBytes {
 public:
  static constexpr size_t kMaxBytes = size_t{64} << 10;

  // Receives what fits, but at most `most` bytes. Returns as recv(2). Precondition: bytes() is shorter than
  // kMaxBytes, and `most` is positive.
  ssize_t receive(int socket, size_t most = kMaxBytes);
  // Whether the last receive() filled all the room that it had, so that the socket may have more.
  bool may_have_more() const { return filled_; }

  absl::string_view bytes() const { return {bytes_.get() + begin_, end_ - begin_}; }
  bool empty() const { return begin_ == end_; }
  // Moves up to `size` bytes to `to`, and returns their number.
  size_t take(char* to, size_t size);
  // All bytes that were ever received.
  uint64_t received() const { return received_; }

 private:
  std::unique_ptr<char[]> bytes_;
  size_t capacity_ = 0;
  size_t begin_ = 0;
  size_t end_ = 0;
  bool filled_ = false;
  // The buffer's end limited the last receive().
  bool grow_ = false;
  uint64_t received_ = 0;
};

// The encrypted bytes that the kernel has not taken yet. Not thread-safe.
class BytesToSend {
 public:
  void append(const char* bytes, size_t size) { bytes_.insert(bytes_.end(), bytes, bytes + size); }
  // Passes bytes to the kernel until it has no more room. Returns whether all are gone; if not, errno says
  // why: EAGAIN, or an error. Never raises SIGPIPE.
  bool send(int socket);
  size_t size() const { return bytes_.size() - begin_; }
  bool empty() const { return size() == 0; }
  void clear();
  void swap(BytesToSend& other) noexcept;

 private:
  std::vector<char> bytes_;
  size_t begin_ = 0;
};

// The two ends from which OpenSSL reads and to which it writes. The socket is elsewhere: its system calls
// need not happen while a thread holds OpenSSL's state.
struct BioEnds {
  // The bytes to process. nullptr: the calling thread must not read, and OpenSSL finds nothing to read.
  ReceivedBytes* in = nullptr;
  // The bytes that OpenSSL still needs for the head or the body of a record, after it found too few.
  size_t wanted = 0;
  // Takes all that OpenSSL writes.
  BytesToSend* out = nullptr;
  // The records and messages that OpenSSL has processed since the owner last set it to 0. Reading fails once
  // there are more than `max_records`, so that a peer cannot occupy the thread with records without data.
  int records = 0;
  int max_records = 0;

  bool too_many_records() const { return records > max_records; }
};

// Lets `ssl` use `ends`, which must outlive it or the next call.
void connect_bio(SSL* ssl, BioEnds* ends);

}  // namespace gradwire::security
