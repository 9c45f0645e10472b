#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/log/progress.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/timer_queue.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/transport/connection.h"

namespace gradwire::rpc {

// The size over which messages are watched (TransferWatch), 0 for none: `option`, and if that is 0 the value
// of GRADWIRE_LOG_TRANSFERS_OVER, which `variable` has (nullptr or empty: not set). InvalidArgument if this
// value is needed and is not a number of bytes.
absl::StatusOr<uint64_t> transfers_over(uint64_t option, const char* variable);

// The name of the callee of a request, for messages: the registered name, "aten::add", "to_here", and
// "service N" for a message of the framework itself.
std::string callee_of(const proto::Request& request);

// The name of a message for people: `the call of "train"`, `the answer of "train"`. `answered`: the callee
// whose answer a Response is; "" if it is not known.
std::string transfer_name(const proto::Envelope& envelope, absl::string_view answered);

// A large message on its way.
struct Transfer {
  enum class Direction { kSending, kReceiving };
  Direction direction = Direction::kSending;
  std::string what;    // `the call of "train"`. It may come from another process.
  std::string worker;  // The name of the worker at the other end.
  uint64_t link = 0;   // The number of the link.
  uint64_t bytes = 0;  // The size of the message.
  // Whether `progress` counts a tensor only when all of it has been sent or received. The lines say so.
  bool whole_buffers = false;
  // Returns how many bytes have been sent or received so far; nullopt if the link has ended. Called without
  // locks, on the threads of begin() and of the timers.
  std::function<std::optional<uint64_t>()> progress;
};

// Says in the log how the large messages of one worker go, for RpcBackendOptions::log_transfers_over. A
// message that takes longer than 10 s is named; the log gets at most one line in 10 s about all of them
// together, which is about the oldest one, and a last line about each message that it has named. On a
// terminal there is a moving line instead, as for a Progress.
//
// While there are such messages, it measures them once a second, on the timers' thread. Thread-safe. Owned by
// a shared_ptr. The timers and the output must outlive it.
class TransferWatch : public std::enable_shared_from_this<TransferWatch> {
 public:
  // Maximum number of messages that are watched at a time. Others are not mentioned.
  static constexpr std::size_t kMostTransfers = 256;
  // Maximum length of Transfer::what in a line. The rest is cut.
  static constexpr std::size_t kMostName = 200;

  struct Options {
    std::string self;   // The name of this worker.
    uint64_t over = 0;  // Only larger messages are watched. 0: none.
    ProgressOutput* output = &ProgressOutput::standard_error();
  };
  // Uses the clock of the timers.
  TransferWatch(TimerQueue& timers, Options options);

  // Whether a message of this size is watched. Inexpensive.
  bool watches(uint64_t bytes) const { return bytes > over_; }
  // A message for which watches() is true begins to be sent, or has begun to arrive.
  void begin(Transfer transfer);
  // A message has arrived completely on this link.
  void received(uint64_t link);
  // The link has ended, with the messages on it.
  void end_link(uint64_t link);
  // Forgets all messages, and watches no others. The worker shuts down.
  void end();

  std::size_t size() const;

 private:
  struct Entry;

  void schedule();
  void tick();
  // Writes the last line about a message, if it was named.
  void finish(Entry& entry, bool complete) const;
  void show(Entry& entry, uint64_t done, std::size_t others);

  TimerQueue& timers_;
  const Options options_;
  const uint64_t over_;

  // Used by the timers' thread.
  absl::Time next_line_ = absl::InfinitePast();

  mutable Mutex mutex_;
  // In the order in which they began.
  std::vector<std::shared_ptr<Entry>> entries_ ABSL_GUARDED_BY(mutex_);
  bool scheduled_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

// Where a message is on its way.
struct MessageRoute {
  const std::string& worker;  // The name of the worker at the other end.
  uint64_t link = 0;          // The number of the link.
  uint64_t bytes = 0;         // The size of the message.
};

// How a message is sent.
struct Sending {
  // Returns how many of the bytes up to the end of the message are unsent; nullopt if the link has ended.
  std::function<std::optional<uint64_t>()> unsent;
  // Connection::counts_whole_buffers().
  bool whole_buffers = false;
};

// Has a message watched that was just sent. `answered`: the request that a Response answers; nullptr if it is
// not known. `sending`: how it is sent. Does nothing if none of its bytes is unsent.
void watch_sending(TransferWatch& watch, const MessageRoute& route, const proto::Envelope& envelope,
                   const proto::Request* answered, Sending sending);

// The connection on which a message arrives, and how many of its bytes have arrived.
struct ArrivingOn {
  std::weak_ptr<transport::Connection> connection;
  uint64_t arrived = 0;
};

// Has a message watched that begins to arrive. `header`: its serialised Envelope; one that is malformed is
// ignored here. `callee_of`: the name of what this worker has called, by the id of the call; "" if it is not
// known. The caller must report the end of the message, or of the link, to `watch`.
void watch_receiving(TransferWatch& watch, const MessageRoute& route, const std::string& header,
                     ArrivingOn arriving, absl::FunctionRef<std::string(uint64_t)> callee_of);

}  // namespace gradwire::rpc
