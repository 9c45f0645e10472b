#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gradwire/security/limits.h"
#include "gradwire/security/secure_stream.h"
#include "gradwire/transport/common/loop_connection.h"
#include "gradwire/transport/tcp/secure/refusal_reader.h"
#include "gradwire/transport/tcp/send/sender.h"
#include "gradwire/transport/tcp/stripes.h"
#include "gradwire/transport/tcp/wire/frame.h"
#include "gradwire/transport/turns/read_size.h"

namespace gradwire::transport {

// The receiving side of a TCP connection: reads its socket and delivers complete messages.
//
// If a message is complete except for its shares on stripes, the receiver stops reading the socket until the
// shares have arrived.
//
// Used only by the loop's driver, except for bytes_arrived(). It is a part of its connection.
class TcpReceiver {
 public:
  TcpReceiver(LoopConnection& connection, TcpSender& sender, TcpStripes& stripes, const TcpOptions& options);

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

  // Handles the received data: one message, and others until the time of the loop's round is over (turns.h).
  // A later round goes on with the rest. `until_end`: read up to the end of the stream, which may have been
  // reached and is not reported again.
  void read_in_loop(bool until_end);
  // Called when the peer is gone: as above, and then closes the connection with `cause`, unless the read has
  // found the end.
  void read_to_end_in_loop(absl::string_view cause);
  bool awaits_shares_in_loop() const { return awaits_shares_; }
  // Closes the connection, because the peer is gone and the message that has begun will never be complete.
  void cut_off_in_loop();
  // Called when the last outstanding share has arrived.
  void shares_arrived_in_loop();
  // Called after close(): reads and drops further data, without waiting for the rest of a message.
  void discard_in_loop();

  uint64_t bytes_arrived() const { return bytes_arrived_.load(std::memory_order_relaxed); }

 private:
  // Handles one piece of the received data after the other.
  void advance_in_loop(bool until_end);
  // Whether a lost connection has been read to its end. `more`: there may be more data.
  bool is_read_to_end_in_loop(bool more) const;
  // Goes on in a later round.
  void defer_in_loop(bool until_end);
  // Handles the bytes that were read before. Returns whether all of them have been handled.
  bool handle_read_ahead_in_loop();
  // Reads once. Returns whether there may be more data.
  bool read_once_in_loop(bool until_end);
  ssize_t read_places_in_loop(const iovec* places, int count);
  void read_failed_in_loop(int error);
  // Handles the first bytes of the stream. Returns false if no byte of a frame follows.
  bool accept_first_bytes_in_loop(absl::Span<const char> bytes);
  // Passes the bytes of one read to the parser. Returns false if reading has to stop, and keeps what was not
  // handled in read_ahead_.
  bool accept_bytes_in_loop(std::size_t in_places, absl::Span<const char> beyond);
  // The same; leaves what was not handled in `beyond`.
  bool parse_in_loop(std::size_t in_places, absl::Span<const char>& beyond);
  // Reports a message of which a part has arrived to the listener, once.
  void announce_in_loop();
  void deliver_in_loop();
  // Called while a frame waits for its shares: records whether the stream ends after the frame. If so, the
  // time for the shares is limited.
  void note_end_in_loop(bool end_may_have_come);
  void watch_shares_in_loop();
  void resume_in_loop();

  LoopConnection& connection_;
  TcpSender& sender_;
  TcpStripes& stripes_;
  const absl::Duration share_timeout_;
  // -1 after the connection was closed.
  int socket_ = -1;
  security::SecureStream* stream_ = nullptr;
  FrameParser parser_;
  // Present until the first bytes show that the peer has not refused the connection.
  std::optional<RefusalReader> refusal_;

  // A deferred task will go on, and whether it reads up to the end of the stream.
  bool deferred_ = false;
  bool deferred_until_end_ = false;
  // Set when the peer is gone: the reason to close the connection, and bytes_arrived() at that time.
  std::optional<std::string> lost_;
  uint64_t arrived_at_loss_ = 0;
  // Sizes of a read between messages, and of one into the buffers of a message.
  ReadSize small_reads_;
  ReadSize large_reads_;

  bool awaits_shares_ = false;
  // The bytes from ahead_from_ on were read but not handled: they follow a message that waits for its shares,
  // or the time of the round was over. Whether the end of the stream may have been reached.
  std::string read_ahead_;
  std::size_t ahead_from_ = 0;
  bool read_until_end_ = false;
  uint64_t shares_timer_ = 0;
  std::atomic<uint64_t> bytes_arrived_{0};
};

}  // namespace gradwire::transport
