#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "gradwire/security/limits.h"
#include "gradwire/transport/common/loop_connection.h"
#include "gradwire/transport/tcp/frame.h"
#include "gradwire/transport/tcp/stripes.h"

namespace gradwire::transport {

// The receiving side of a TCP connection: reads its socket, and delivers the messages that are complete.
//
// A message that has come but for shares on stripes holds up what follows: nothing more is read from the
// socket until its shares have come.
//
// Belongs to the loop's driver, but for bytes_arrived(). Part of its connection.
class TcpReceiver {
 public:
  TcpReceiver(LoopConnection& connection, TcpStripes& stripes, const TcpOptions& options);

  void start_in_loop(int socket) { socket_ = socket; }
  // Reads no more, and drops what has come in part.
  void end_in_loop();

  // Reads what has come, or has others have their turn before the rest. `until_end`: up to the end of the
  // stream, which may have come and is not reported again.
  void read_in_loop(bool until_end);
  bool awaits_shares_in_loop() const { return awaits_shares_; }
  // The last share that was due has come.
  void shares_arrived_in_loop();
  // close() was called: reads what comes from now on to drop it, without waiting for the rest of a message.
  void discard_in_loop();

  uint64_t bytes_arrived() const { return bytes_arrived_.load(std::memory_order_relaxed); }

 private:
  // Reads once. Whether there may be more.
  bool read_once_in_loop(bool until_end);
  // Puts what readv gave into messages. False when reading has to stop.
  bool accept_bytes_in_loop(std::size_t in_places, absl::Span<const char> beyond);
  void deliver_in_loop();
  // While a frame awaits its shares: notes whether the stream ends behind it, and then bounds the wait.
  void note_end_in_loop(bool end_may_have_come);
  void watch_shares_in_loop();
  void resume_in_loop();

  LoopConnection& connection_;
  TcpStripes& stripes_;
  const absl::Duration share_timeout_;
  // -1 when the connection has ended.
  int socket_ = -1;
  FrameParser parser_;

  bool awaits_shares_ = false;
  // What had been read behind the message that waits, and whether the end of the stream may have come.
  std::string read_ahead_;
  bool read_until_end_ = false;
  uint64_t shares_timer_ = 0;
  std::atomic<uint64_t> bytes_arrived_{0};
};

}  // namespace gradwire::transport
