// How one socket is read. Frames on it are complete only with their shares, which arrive on the stripes in
// any order relative to it. To keep the order of messages, the receiver is in one of three states:
// - Reading: it parses frames and delivers each complete message.
// - `deferred_`: the time of a round was over. Bytes that it has already read are in read_ahead_. A deferred
//   task of the loop ends this state; events of the socket do not.
// - `awaits_shares_`: the last frame lacks shares. It reads no more from this socket; bytes that it has
//   already read are in read_ahead_. shares_arrived_in_loop() ends this state.

#include "gradwire/transport/tcp/receiver.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/transport/send_batch.h"

namespace gradwire::transport {
namespace {

// Maximum number of bytes to read from a connection whose peer is gone: more than a socket holds. Only a
// hostile peer sends on.
constexpr uint64_t kMostAfterLoss = uint64_t{16} << 20;
constexpr int kMaxPlaces = 16;
// Bounds of one read. Small messages take much time per byte. For the bytes of large ones, smaller reads than
// kLeastLarge would cost more time than they save others.
constexpr std::size_t kLeastSmall = std::size_t{4} << 10;
constexpr std::size_t kMostSmall = std::size_t{64} << 10;
constexpr std::size_t kLeastLarge = std::size_t{64} << 10;
constexpr std::size_t kFirstLarge = std::size_t{256} << 10;
constexpr std::size_t kMostLarge = std::size_t{16} << 20;
constexpr char kCutOff[] = "the peer closed the connection in the middle of a message";

// Shortens the places to `bytes` in all, at least one of them. Returns their number.
int shorten(iovec* places, int count, std::size_t bytes) {
  for (int i = 0; i < count; ++i) {
    if (places[i].iov_len >= bytes) {
      places[i].iov_len = bytes;
      return i + 1;
    }
    bytes -= places[i].iov_len;
  }
  return count;
}

}  // namespace

TcpReceiver::TcpReceiver(LoopConnection& connection, TcpSender& sender, TcpStripes& stripes,
                         const TcpOptions& options)
    : connection_(connection),
      sender_(sender),
      stripes_(stripes),
      share_timeout_(options.user_timeout),
      parser_(options.limits, *connection.context().pool),
      small_reads_(kLeastSmall, kMostSmall, kMostSmall),
      large_reads_(kLeastLarge, kFirstLarge, kMostLarge) {}

void TcpReceiver::end_in_loop() {
  connection_.loop().cancel_in_loop(shares_timer_);
  socket_ = -1;
  stream_ = nullptr;
  awaits_shares_ = false;
  read_ahead_ = std::string();
  parser_.take();
}

void TcpReceiver::read_in_loop(bool until_end) {
  if (awaits_shares_) {
    note_end_in_loop(until_end);
  } else if (deferred_) {
    deferred_until_end_ = deferred_until_end_ || until_end;
  } else {
    advance_in_loop(until_end);
  }
}

void TcpReceiver::read_to_end_in_loop(absl::string_view cause) {
  if (socket_ < 0 || awaits_shares_) {
    connection_.fail_in_loop(absl::UnavailableError(cause));
    return;
  }
  if (lost_.has_value()) return;
  lost_ = std::string(cause);
  arrived_at_loss_ = bytes_arrived();
  read_in_loop(true);
}

// The pieces are the bytes of one read, or those in read_ahead_. After each of them:
// 1. Stop if the connection is closed, or if a message waits for its shares. If the peer is gone and all has
//    been read, close the connection.
// 2. Defer the rest if the time of the round is over. Bytes in read_ahead_ mean that it is.
// 3. Stop if the socket is empty.
void TcpReceiver::advance_in_loop(bool until_end) {
  if (socket_ < 0) return;
  // The answers to the messages of one read are sent together.
  SendBatch answers(SendBatch::Scope::kBrief);
  bool more = read_ahead_.empty() ? read_once_in_loop(until_end) : handle_read_ahead_in_loop();
  while (true) {
    stripes_.read_due_in_loop();
    if (socket_ < 0) return;
    if (lost_.has_value() && is_read_to_end_in_loop(more)) {
      connection_.fail_in_loop(absl::UnavailableError(*lost_));
      return;
    }
    if (awaits_shares_) {
      // The end of the stream may have arrived together with the frame that now waits; it is not reported
      // again.
      note_end_in_loop(until_end);
      return;
    }
    if (!read_ahead_.empty() || (more && connection_.loop().turns_in_loop().spent())) {
      defer_in_loop(until_end);
      return;
    }
    if (!more) return;
    SendBatch::flush();
    more = read_once_in_loop(until_end);
  }
}

// A message that waits for shares will not be complete.
bool TcpReceiver::is_read_to_end_in_loop(bool more) const {
  if (awaits_shares_) return true;
  return read_ahead_.empty() && (!more || bytes_arrived() - arrived_at_loss_ > kMostAfterLoss);
}

// epoll does not report this edge again.
void TcpReceiver::defer_in_loop(bool until_end) {
  deferred_ = true;
  deferred_until_end_ = until_end;
  connection_.defer_in_loop([this] {
    deferred_ = false;
    read_in_loop(std::exchange(deferred_until_end_, false));
  });
}

bool TcpReceiver::handle_read_ahead_in_loop() {
  std::string ahead = std::exchange(read_ahead_, std::string());
  absl::Span<const char> beyond = absl::MakeConstSpan(ahead).subspan(std::exchange(ahead_from_, 0));
  if (connection_.close_called() || parse_in_loop(0, beyond)) return true;
  // The rest stays where it is.
  if (socket_ >= 0 && !beyond.empty()) {
    ahead_from_ = ahead.size() - beyond.size();
    read_ahead_ = std::move(ahead);
  }
  return false;
}

bool TcpReceiver::read_once_in_loop(bool until_end) {
  // After close() the bytes are only drained, so that the end of the stream is seen.
  const bool discard = connection_.close_called();
  Turns& turns = connection_.loop().turns_in_loop();
  iovec places[kMaxPlaces + 1];
  int count = 0;
  // Between frames read into scratch memory: most messages are small, and several arrive at once.
  if (!discard && !parser_.between_frames()) {
    absl::StatusOr<int> found = parser_.places(places, kMaxPlaces);
    if (!found.ok()) {
      connection_.fail_in_loop(found.status());
      return false;
    }
    count = *found;
  }
  std::size_t room = 0;
  for (int i = 0; i < count; ++i) room += places[i].iov_len;
  const bool large = room >= kLeastLarge;
  std::size_t small = small_reads_.bytes();
  if (room > large_reads_.bytes()) {
    room = large_reads_.bytes();
    count = shorten(places, count, room);
    small = 0;
  } else {
    // The bytes after the current piece are read into scratch memory in the same call, so that small pieces
    // need no extra call.
    places[count++] = {connection_.loop().scratch_in_loop().data(), small};
  }
  const absl::Time begin = large ? turns.now() : absl::Time();
  const ssize_t result = read_places_in_loop(places, count);
  if (result == 0) {
    connection_.fail_in_loop(absl::UnavailableError(
        sender_.cause_of_end(parser_.between_frames() ? "the peer closed the connection" : kCutOff)));
    return false;
  }
  if (result < 0) {
    if (errno == EINTR) return true;
    if (errno != EAGAIN && errno != EWOULDBLOCK) read_failed_in_loop(errno);
    return false;
  }
  const auto bytes = static_cast<std::size_t>(result);
  if (large) large_reads_.on_handled(std::min(bytes, room), turns.now() - begin);
  bytes_arrived_.fetch_add(bytes, std::memory_order_relaxed);
  const std::size_t in_places = std::min(bytes, room);
  const absl::Span<const char> beyond(connection_.loop().scratch_in_loop().data(), bytes - in_places);
  // A listener may close the connection inside these calls.
  if (!discard && refusal_.has_value()) {
    if (!accept_first_bytes_in_loop(beyond)) return false;
  } else if (!discard && !accept_bytes_in_loop(in_places, beyond)) {
    return false;
  }
  if (!large) small_reads_.on_handled(bytes, absl::ZeroDuration());
  // A short read means that the socket is empty; epoll will report further data. A stream may have more.
  return bytes == room + small || until_end || stream_ != nullptr;
}

ssize_t TcpReceiver::read_places_in_loop(const iovec* places, int count) {
  if (stream_ != nullptr) return stream_->read(absl::MakeConstSpan(places, static_cast<std::size_t>(count)));
  return count == 1 ? ::recv(socket_, places[0].iov_base, places[0].iov_len, 0)
                    : ::readv(socket_, places, count);
}

void TcpReceiver::cut_off_in_loop() {
  connection_.fail_in_loop(absl::UnavailableError(sender_.cause_of_end(kCutOff)));
}

void TcpReceiver::read_failed_in_loop(int error) {
  connection_.fail_in_loop(stream_ != nullptr && error == EPROTO
                               ? stream_->failure()
                               : absl::UnavailableError(sender_.cause_of_end(std::strerror(error), error)));
}

// The parser is between frames, so all bytes were read into scratch memory.
bool TcpReceiver::accept_first_bytes_in_loop(absl::Span<const char> bytes) {
  switch (refusal_->add(bytes)) {
    case RefusalReader::Progress::kMore:
      return true;
    case RefusalReader::Progress::kRefusal:
      connection_.fail_in_loop(absl::UnauthenticatedError(
          absl::StrCat("the peer refused the connection: ", refusal_->sentence())));
      return false;
    case RefusalReader::Progress::kOther:
      break;
  }
  std::string all = refusal_->held();
  refusal_.reset();
  if (all.empty()) return accept_bytes_in_loop(0, bytes);
  all.append(bytes.data(), bytes.size());
  return accept_bytes_in_loop(0, absl::MakeConstSpan(all.data(), all.size()));
}

bool TcpReceiver::accept_bytes_in_loop(std::size_t in_places, absl::Span<const char> beyond) {
  const std::size_t before = beyond.size();
  if (parse_in_loop(in_places, beyond)) return true;
  if (socket_ >= 0 && !beyond.empty()) {
    read_ahead_.assign(beyond.data(), beyond.size());
    ahead_from_ = 0;
    // No more than this was handled in the time of the round.
    if (!awaits_shares_) small_reads_.on_handled(before - beyond.size(), Turns::kRound);
  }
  return false;
}

bool TcpReceiver::parse_in_loop(std::size_t in_places, absl::Span<const char>& beyond) {
  absl::Status status;
  bool delivered = false;
  if (in_places > 0) status = parser_.advance(in_places);
  while (status.ok()) {
    if (parser_.has_stripe_places()) stripes_.place_in_loop(parser_.take_stripe_places());
    if (parser_.complete()) {
      if (stripes_.shares_are_due_in_loop()) {
        // Delivering a later frame now would let it overtake this one.
        awaits_shares_ = true;
        announce_in_loop();
        return false;
      }
      deliver_in_loop();
      delivered = true;
    }
    if (socket_ < 0) return false;
    if (beyond.empty() || connection_.close_called()) {
      announce_in_loop();
      return true;
    }
    // These are set at the beginning of each frame: the frame before may have changed them.
    if (parser_.between_frames()) {
      if (delivered && connection_.loop().turns_in_loop().spent()) return false;
      parser_.set_max_message_bytes(connection_.listener().max_message_bytes());
      // A frame that claims more stripes than these is refused.
      parser_.set_stripes(stripes_.usable_in_loop());
    }
    status = parser_.consume(beyond);
  }
  connection_.fail_in_loop(status);
  return false;
}

void TcpReceiver::announce_in_loop() {
  if (!parser_.has_arriving() || connection_.close_called()) return;
  const FrameParser::Arriving message = parser_.arriving();
  connection_.listener().on_arriving(connection_, message.header, message.bytes, message.arrived);
}

void TcpReceiver::deliver_in_loop() {
  absl::Status lost = parser_.lost();
  Message message = parser_.take();
  if (connection_.close_called()) return;
  if (parser_.is_control()) {
    const absl::Status status = stripes_.control_in_loop(message.header);
    if (!status.ok()) connection_.fail_in_loop(status);
    return;
  }
  if (!lost.ok()) {
    connection_.listener().on_lost(connection_, std::move(message.header), std::move(lost));
    return;
  }
  if (message.byte_size() >= BufferPool::kPooledFrom) connection_.context().trim_pool();
  connection_.listener().on_message(connection_, std::move(message));
}

void TcpReceiver::note_end_in_loop(bool end_may_have_come) {
  read_until_end_ = read_until_end_ || end_may_have_come;
  if (read_until_end_) watch_shares_in_loop();
}

// The peer sends nothing more on the connection itself. Shares may still arrive, but only within a limited
// time.
// The time starts again whenever some bytes of the shares have arrived.
void TcpReceiver::watch_shares_in_loop() {
  if (shares_timer_ != 0) return;
  shares_timer_ = connection_.schedule_in_loop(Clock::system().now() + share_timeout_,
                                               [this, seen = stripes_.bytes_arrived()] {
                                                 shares_timer_ = 0;
                                                 if (!awaits_shares_) return;
                                                 if (stripes_.bytes_arrived() != seen) {
                                                   watch_shares_in_loop();
                                                 } else {
                                                   cut_off_in_loop();
                                                 }
                                               });
}

void TcpReceiver::shares_arrived_in_loop() {
  // Continue in a task, because this may run while the frame of the shares is being read.
  // The task checks all conditions again: the connection may be closed first.
  if (awaits_shares_) {
    connection_.post([this] { resume_in_loop(); });
  }
}

// 1. Deliver the message that is now complete.
// 2. Go on with the bytes that were read behind it, and then with the socket. The end of the stream may have
//    been reached meanwhile (read_until_end_), which epoll does not report again.
void TcpReceiver::resume_in_loop() {
  if (!awaits_shares_ || socket_ < 0 || stripes_.shares_are_due_in_loop()) return;
  awaits_shares_ = false;
  SendBatch answers(SendBatch::Scope::kBrief);
  deliver_in_loop();
  read_in_loop(std::exchange(read_until_end_, false));
}

void TcpReceiver::discard_in_loop() {
  if (std::exchange(awaits_shares_, false)) read_in_loop(true);
}

}  // namespace gradwire::transport
