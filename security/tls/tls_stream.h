#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gradwire/base/mutex.h"
#include "gradwire/security/secure_stream.h"
#include "gradwire/security/tls/byte_buffers.h"
#include "gradwire/security/tls/certificates/openssl.h"
#include "gradwire/security/tls/tls_parts.h"

namespace gradwire::security {

// Reads pieces of memory one after the other, as records of a bounded size. A record that begins in one piece
// and goes on in the next ones is copied together. Not thread-safe. The pieces must outlive it.
class PieceReader {
 public:
  explicit PieceReader(absl::Span<const iovec> pieces) : pieces_(pieces) {
    for (const iovec& piece : pieces) size_ += piece.iov_len;
    drop_empty();
  }

  // The bytes that remain.
  size_t size() const { return size_; }

  // Precondition: `size` bytes remain.
  void skip(size_t size) {
    size_ -= size;
    while (size > 0) {
      const size_t part = std::min(size, here());
      offset_ += part;
      size -= part;
      drop_empty();
    }
  }

  // Whether next() copies the next record, of at most `most` bytes.
  bool needs_copy(size_t most) const { return here() < std::min(most, size_); }

  // Returns the next min(most, size()) bytes: in place, or copied to `room`, which has room for them.
  absl::string_view next(size_t most, char* room) {
    const size_t size = std::min(most, size_);
    if (!needs_copy(most)) {
      const absl::string_view bytes(begin(), size);
      skip(size);
      return bytes;
    }
    for (size_t done = 0; done < size;) {
      const size_t part = std::min(size - done, here());
      std::memcpy(room + done, begin(), part);
      done += part;
      skip(part);
    }
    return {room, size};
  }

 private:
  const char* begin() const { return static_cast<const char*>(pieces_.front().iov_base) + offset_; }
  // The remaining bytes of the current piece.
  size_t here() const { return pieces_.empty() ? 0 : pieces_.front().iov_len - offset_; }
  void drop_empty() {
    while (!pieces_.empty() && here() == 0) {
      pieces_.remove_prefix(1);
      offset_ = 0;
    }
  }

  absl::Span<const iovec> pieces_;
  size_t offset_ = 0;
  size_t size_ = 0;
};

// The records of one TLS connection.
//
// OpenSSL's state of a connection is for one thread at a time. `tls_mutex_` guards it, and is held for one
// record. System calls happen outside: a thread that polls an empty socket does not hinder the one that
// writes.
class TlsStream final : public SecureStream {
 public:
  // RFC 8446, 5.5: AES-GCM keys serve for at most 2^24.5 records.
  static constexpr uint64_t kRecordsOfOneKey = uint64_t{1} << 23;
  // A peer that sends more records and messages than this without data violates the protocol.
  static constexpr int kMaxRecordsWithoutData = 32;

  explicit TlsStream(TlsParts parts, uint64_t records_of_one_key = kRecordsOfOneKey);

  ssize_t read(absl::Span<const iovec> places) override;
  ssize_t write(absl::Span<const iovec> pieces) override;
  void end_writes() override;
  absl::Status failure() const override;

 private:
  // The result of an attempt to read one record.
  struct Decrypted {
    enum class Kind : uint8_t { kData, kNeedsBytes, kEnded, kFailed };
    Kind kind;
    size_t size = 0;
  };

  Decrypted decrypt(char* to, size_t size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(read_mutex_);
  Decrypted decrypt_locked(char* to, size_t size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(read_mutex_, tls_mutex_);
  // Fills one place. Returns whether it may go on to the next one. Adds the number of bytes to `total`; sets
  // `error` to an errno, or leaves it 0.
  bool fill(const iovec& place, size_t* total, int* records, int* error)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(read_mutex_);
  // Returns 0, or an errno.
  int receive() ABSL_EXCLUSIVE_LOCKS_REQUIRED(read_mutex_);

  // Encrypts one record. Returns 0, or an errno.
  int encrypt(const char* bytes, size_t size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_);
  // Sends all that is encrypted. Returns 0, or an errno.
  int send() ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_);
  // Fails the stream; the first reason wins.
  void fail_locked(absl::Status reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(tls_mutex_);
  void fail(const std::string& why);
  // Sends an alert that a failed read left behind.
  void send_alert();

  // Set once.
  const int socket_;
  const std::string peer_address_;
  const std::string purpose_;
  const std::shared_ptr<const CertificateSet> own_;
  const uint64_t records_of_one_key_;

  // They are locked in this order. The first two belong to the reading and the writing thread.
  Mutex read_mutex_;
  Mutex write_mutex_ ABSL_ACQUIRED_AFTER(read_mutex_);
  mutable Mutex tls_mutex_ ABSL_ACQUIRED_AFTER(write_mutex_);

  ReceivedBytes received_ ABSL_GUARDED_BY(read_mutex_);
  // OpenSSL has decrypted bytes that read() has not returned.
  bool decrypted_remain_ ABSL_GUARDED_BY(read_mutex_) = false;

  BytesToSend sending_ ABSL_GUARDED_BY(write_mutex_);
  // The bytes that are encrypted, but whose number write() has not returned yet.
  size_t unreported_ ABSL_GUARDED_BY(write_mutex_) = 0;
  // Small pieces are copied here to form one record.
  std::unique_ptr<char[]> gathered_ ABSL_GUARDED_BY(write_mutex_);

  const SslPtr ssl_ ABSL_PT_GUARDED_BY(tls_mutex_);
  BytesToSend encrypted_ ABSL_GUARDED_BY(tls_mutex_);
  BioEnds ends_ ABSL_GUARDED_BY(tls_mutex_);
  uint64_t records_with_key_ ABSL_GUARDED_BY(tls_mutex_) = 0;
  // The size of the answers to requests of the peer in encrypted_.
  size_t answers_ ABSL_GUARDED_BY(tls_mutex_) = 0;
  bool peer_ended_ ABSL_GUARDED_BY(tls_mutex_) = false;
  bool writes_ended_ ABSL_GUARDED_BY(tls_mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(tls_mutex_);

  // Synchronised by itself: no more data can arrive, because the peer has ended its stream or the stream has
  // failed.
  std::atomic<bool> over_{false};
};

}  // namespace gradwire::security
