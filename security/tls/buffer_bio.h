#pragma once

#include <cstddef>

#include "gradwire/security/tls/byte_buffers.h"
#include "gradwire/security/tls/certificates/openssl.h"

namespace gradwire::security {

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
