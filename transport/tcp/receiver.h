#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/types/span.h"
#include "gradwire/security/limits.h"
#include "gradwire/security/secure_stream.h"
#include "gradwire/transport/common/loop_connection.h"
#include "gradwire/transport/tcp/frame.h"
#include "gradwire/transport/tcp/secure/refusal_reader.h"
#include "gradwire/transport/tcp/stripes.h"

namespace gradwire::transport {

// The receiving side of a TCP connection: reads its socket and delivers complete messages.
//
// If a message is complete except for its shares on stripes, the receiver stops reading the socket until the
// shares have arrived.
//
// Used only by the loop's driver, except for bytes_arrived(). It is a part of its connection.
class TcpReceiver {
 public:
  TcpReceiver(LoopConnection& connection, TcpStripes& stripes, const TcpOptions& options);

  // For the connecting end without a handshake. Must be called before the start: a refusal may come in place
  // of the first frame.
  void expect_refusal_in_loop() { refusal_.emplace(); }
  // `stream`: through it the socket is read; nullptr: directly.
  void start_in_loop(int socket, security::SecureStream* stream) {
    socket_ = socket;
    stream_ = stream;
  }
  // Stops reading and drops an incomplete message.
  void end_in_loop();

  // Reads the received data. After a limited number of reads it posts a task for the rest, so that other
  // connections are served in between. `until_end`: read up to the end of the stream, which may have been
  // reached and is not reported again.
  void read_in_loop(bool until_end);
  bool awaits_shares_in_loop() const { return awaits_shares_; }
  // Called when the last outstanding share has arrived.
  void shares_arrived_in_loop();
  // Called after close(): reads and drops further data, without waiting for the rest of a message.
  void discard_in_loop();

  uint64_t bytes_arrived() const { return bytes_arrived_.load(std::memory_order_relaxed); }

 private:
  // Reads once. Returns whether there may be more data.
  bool read_once_in_loop(bool until_end);
  ssize_t read_places_in_loop(const iovec* places, int count);
  void read_failed_in_loop(int error);
  // Handles the first bytes of the stream. Returns false if no byte of a frame follows.
  bool accept_first_bytes_in_loop(absl::Span<const char> bytes);
  // Passes the bytes of one read to the parser. Returns false if reading has to stop.
  bool accept_bytes_in_loop(std::size_t in_places, absl::Span<const char> beyond);
  void deliver_in_loop();
  // Called while a frame waits for its shares: records whether the stream ends after the frame. If so, the
  // time for the shares is limited.
  void note_end_in_loop(bool end_may_have_come);
  void watch_shares_in_loop();
  void resume_in_loop();

  LoopConnection& connection_;
  TcpStripes& stripes_;
  const absl::Duration share_timeout_;
  // -1 after the connection was closed.
  int socket_ = -1;
  security::SecureStream* stream_ = nullptr;
  FrameParser parser_;
  // Present until the first bytes show that the peer has not refused the connection.
  std::optional<RefusalReader> refusal_;

  // A task will read on, and whether it reads up to the end of the stream.
  bool read_posted_ = false;
  bool posted_until_end_ = false;

  bool awaits_shares_ = false;
  // The bytes that were read after the waiting message, and whether the end of the stream may have been
  // reached.
  std::string read_ahead_;
  bool read_until_end_ = false;
  uint64_t shares_timer_ = 0;
  std::atomic<uint64_t> bytes_arrived_{0};
};

}  // namespace gradwire::transport
