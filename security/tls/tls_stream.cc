#include "gradwire/security/tls/tls_stream.h"

#include <openssl/err.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/security/tls/tls_errors.h"

namespace gradwire::security {
namespace {

constexpr size_t kRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH;
// The records that one system call sends together.
constexpr size_t kRecordsOfOneSend = 4;
// A peer that sends tiny records must not occupy the reading thread.
constexpr int kMaxRecordsOfOneRead = 512;
// The answers to requests for new keys that may wait for the next write.
constexpr size_t kMaxAnswers = size_t{4} << 10;

}  // namespace

TlsStream::TlsStream(TlsParts parts, uint64_t records_of_one_key)
    : socket_(parts.socket),
      peer_address_(std::move(parts.peer_address)),
      purpose_(std::move(parts.purpose)),
      own_(std::move(parts.own)),
      records_of_one_key_(records_of_one_key),
      ssl_(std::move(parts.ssl)),
      ends_{.out = &encrypted_, .max_records = kMaxRecordsWithoutData} {
  connect_bio(ssl_.get(), &ends_);
}

ssize_t TlsStream::read(absl::Span<const iovec> places) {
  MutexLock lock(read_mutex_);
  size_t total = 0;
  int records = 0;
  int error = 0;
  for (const iovec& place : places) {
    if (!fill(place, &total, &records, &error)) break;
  }
  // An error that ended this call after some bytes is found again by the next one.
  if (total > 0) return static_cast<ssize_t>(total);
  if (error == 0) return 0;
  errno = error;
  return -1;
}

bool TlsStream::fill(const iovec& place, size_t* total, int* records, int* error) {
  char* to = static_cast<char*>(place.iov_base);
  size_t room = place.iov_len;
  while (room > 0) {
    if (*records >= kMaxRecordsOfOneRead && *total > 0) return false;
    // Without anything to decrypt, the socket is asked first: most of the time a poll finds nothing there.
    if (received_.empty() && !decrypted_remain_ && !over_.load(std::memory_order_acquire)) {
      if (*total > 0 && !received_.may_have_more()) return false;
      *error = receive();
      if (*error != 0) return false;
    }
    const Decrypted result = decrypt(to, room);
    switch (result.kind) {
      case Decrypted::Kind::kData:
        to += result.size;
        room -= result.size;
        *total += result.size;
        ++*records;
        break;
      case Decrypted::Kind::kNeedsBytes:
        break;
      case Decrypted::Kind::kEnded:
        return false;
      case Decrypted::Kind::kFailed:
        send_alert();
        *error = EPROTO;
        return false;
    }
  }
  return true;
}

int TlsStream::receive() {
  const ssize_t count = received_.receive(socket_);
  if (count > 0) return 0;
  if (count < 0) return errno;
  fail(
      "the connection was cut: it ended without the peer's goodbye (close_notify); the peer ended abruptly, "
      "or "
      "somebody on the way cut the connection");
  return EPROTO;
}

TlsStream::Decrypted TlsStream::decrypt(char* to, size_t size) {
  MutexLock lock(tls_mutex_);
  const Decrypted result = decrypt_locked(to, size);
  decrypted_remain_ = result.kind == Decrypted::Kind::kData && SSL_pending(ssl_.get()) > 0;
  return result;
}

TlsStream::Decrypted TlsStream::decrypt_locked(char* to, size_t size) {
  if (!failure_.ok()) return {Decrypted::Kind::kFailed};
  if (peer_ended_) return {Decrypted::Kind::kEnded};
  ERR_clear_error();
  ends_.in = &received_;
  const size_t answers_before = encrypted_.size();
  size_t count = 0;
  const int result = SSL_read_ex(ssl_.get(), to, size, &count);
  ends_.in = nullptr;
  answers_ += encrypted_.size() - answers_before;
  if (answers_ > kMaxAnswers) {
    fail_locked(absl::UnauthenticatedError(
        absl::StrCat("TLS with ", peer_address_, " failed: the peer asks for new keys too often")));
    return {Decrypted::Kind::kFailed};
  }
  if (result == 1) {
    ends_.records = 0;
    return {Decrypted::Kind::kData, count};
  }
  const int kind = SSL_get_error(ssl_.get(), result);
  const OpenSslError error = take_openssl_error();
  if (ends_.too_many_records()) {
    fail_locked(absl::UnauthenticatedError(absl::StrCat("TLS with ", peer_address_,
                                                        " failed: the peer sent more than ",
                                                        kMaxRecordsWithoutData, " records without data")));
    return {Decrypted::Kind::kFailed};
  }
  if (kind == SSL_ERROR_WANT_READ) return {Decrypted::Kind::kNeedsBytes};
  if (kind == SSL_ERROR_ZERO_RETURN) {
    peer_ended_ = true;
    over_.store(true, std::memory_order_release);
    return {Decrypted::Kind::kEnded};
  }
  fail_locked(tls_failure(error, peer_address_, purpose_, *own_));
  return {Decrypted::Kind::kFailed};
}

ssize_t TlsStream::write(absl::Span<const iovec> pieces) {
  MutexLock lock(write_mutex_);
  PieceReader reader(pieces);
  // The call begins with bytes that an earlier one encrypted before the kernel had no more room.
  const size_t begun = std::min(unreported_, reader.size());
  reader.skip(begun);
  size_t taken = 0;
  size_t unreported_here = begun;
  while (true) {
    // 1. Send what is encrypted. Only then does the caller learn that it is gone.
    if (const int error = send(); error != 0) {
      if (taken > 0) return static_cast<ssize_t>(taken);
      errno = error;
      return -1;
    }
    taken += unreported_here;
    unreported_ -= unreported_here;
    unreported_here = 0;
    if (reader.size() == 0) return static_cast<ssize_t>(taken);

    // 2. Encrypt the next records.
    for (size_t i = 0; i < kRecordsOfOneSend && reader.size() > 0; ++i) {
      if (gathered_ == nullptr && reader.needs_copy(kRecordBytes)) gathered_.reset(new char[kRecordBytes]);
      const absl::string_view record = reader.next(kRecordBytes, gathered_.get());
      if (const int error = encrypt(record.data(), record.size()); error != 0) {
        if (taken > 0) return static_cast<ssize_t>(taken);
        errno = error;
        return -1;
      }
      unreported_ += record.size();
      unreported_here += record.size();
    }
  }
}

int TlsStream::encrypt(const char* bytes, size_t size) {
  MutexLock lock(tls_mutex_);
  if (!failure_.ok()) return EPROTO;
  if (writes_ended_) return EPIPE;
  ERR_clear_error();
  if (++records_with_key_ > records_of_one_key_ &&
      SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) == 1) {
    records_with_key_ = 1;
  }
  size_t count = 0;
  const int result = SSL_write_ex(ssl_.get(), bytes, size, &count);
  if (result == 1 && count == size) return 0;
  const int kind = SSL_get_error(ssl_.get(), result);
  const OpenSslError error = take_openssl_error();
  fail_locked(kind == SSL_ERROR_WANT_READ
                  ? absl::UnauthenticatedError(absl::StrCat(
                        "TLS with ", peer_address_, " failed: the peer sent a part of a message only"))
                  : tls_failure(error, peer_address_, purpose_, *own_));
  return EPROTO;
}

int TlsStream::send() {
  if (sending_.empty()) {
    MutexLock lock(tls_mutex_);
    if (!failure_.ok()) return EPROTO;
    sending_.swap(encrypted_);
    answers_ = 0;
  }
  return sending_.send(socket_) ? 0 : errno;
}

void TlsStream::end_writes() {
  MutexLock lock(write_mutex_);
  {
    MutexLock tls_lock(tls_mutex_);
    if (writes_ended_ || !failure_.ok()) return;
    writes_ended_ = true;
    ERR_clear_error();
    SSL_shutdown(ssl_.get());
    ERR_clear_error();
  }
  // A socket without room for the goodbye has a peer that does not read. It sees the connection as cut.
  if (send() == 0) send();
}

absl::Status TlsStream::failure() const {
  MutexLock lock(tls_mutex_);
  return failure_;
}

void TlsStream::fail_locked(absl::Status reason) {
  if (failure_.ok()) failure_ = std::move(reason);
  over_.store(true, std::memory_order_release);
}

void TlsStream::fail(const std::string& why) {
  MutexLock lock(tls_mutex_);
  fail_locked(absl::UnavailableError(absl::StrCat("TLS with ", peer_address_, " failed: ", why)));
}

void TlsStream::send_alert() {
  MutexLock lock(write_mutex_);
  if (!sending_.empty() && !sending_.send(socket_)) return;
  {
    MutexLock tls_lock(tls_mutex_);
    sending_.swap(encrypted_);
  }
  sending_.send(socket_);
}

}  // namespace gradwire::security
