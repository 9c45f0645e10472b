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

#include "absl/time/time.h"
#include "gradwire/base/log/progress.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/timer_queue.h"

namespace gradwire::rpc {

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

}  // namespace gradwire::rpc
