#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/base/mutex.h"
#include "gradwire/transport/connection.h"

namespace gradwire::transport {

// A listener for tests that records messages and the close reason. Thread-safe.
class RecordingListener : public ConnectionListener {
 public:
  // Called for each message before it is recorded.
  using Hook = std::function<void(Connection&, const Message&)>;
  explicit RecordingListener(Hook hook = nullptr) : hook_(std::move(hook)) {}

  void on_message(Connection& connection, Message message) override;
  void on_arriving(Connection& connection, const std::string& header, uint64_t bytes,
                   uint64_t arrived) override;
  void on_lost(Connection& connection, std::string header, absl::Status reason) override;
  void on_closed(Connection& connection, absl::Status reason) override;

  uint64_t max_message_bytes() const override { return max_message_bytes_.load(); }
  // Applies to the next message and later ones.
  void set_max_message_bytes(uint64_t bytes) { max_message_bytes_ = bytes; }

  bool introduced() const override { return introduced_.load(); }
  void set_introduced(bool introduced) { introduced_ = introduced; }

  // While held back, on_message() does not return, as if the receiver did not read.
  void hold_back();
  void resume();

  // Waits until `count` messages have been received or the connection is closed. Returns all messages
  // received so far.
  std::vector<Message> wait_for_messages(std::size_t count);
  // As wait_for_messages(), and forgets these messages: the caller has their only owners.
  std::vector<Message> take_messages(std::size_t count);
  // Waits for on_closed() and returns its reason; Internal after kTestTimeout.
  absl::Status wait_closed();

  // The calls of on_arriving(), each with the number of messages before it and the connection's
  // bytes_arrived().
  struct Announced {
    std::string header;
    uint64_t bytes = 0;
    uint64_t arrived = 0;
    std::size_t messages_before = 0;
    uint64_t counted = 0;
  };
  std::vector<Announced> announced();

  // The calls of on_lost().
  struct Lost {
    std::string header;
    absl::Status reason;
  };
  std::vector<Lost> lost();

  std::size_t message_count();
  int closed_count();
  // Number of calls after on_closed(), or concurrent with another call. Must be 0.
  int misplaced_calls();
  // The thread of the last call.
  std::thread::id last_thread();

 private:
  void begin_call();

  const Hook hook_;
  std::atomic<bool> introduced_{true};
  std::atomic<uint64_t> max_message_bytes_{std::numeric_limits<uint64_t>::max()};

  Mutex mutex_;
  CondVar changed_;
  std::vector<Message> messages_ ABSL_GUARDED_BY(mutex_);
  std::vector<Announced> announced_ ABSL_GUARDED_BY(mutex_);
  std::vector<Lost> lost_ ABSL_GUARDED_BY(mutex_);
  bool held_back_ ABSL_GUARDED_BY(mutex_) = false;
  bool in_call_ ABSL_GUARDED_BY(mutex_) = false;
  int closed_count_ ABSL_GUARDED_BY(mutex_) = 0;
  int misplaced_calls_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status reason_ ABSL_GUARDED_BY(mutex_);
  std::thread::id last_thread_ ABSL_GUARDED_BY(mutex_);
};

// Maximum time that a test waits for an event that must happen.
inline constexpr absl::Duration kTestTimeout = absl::Seconds(60);

// Returns a buffer of `size` bytes that are derived from `seed`.
Buffer make_test_buffer(std::size_t size, unsigned seed, Buffer::Sharing sharing = Buffer::Sharing::kOwned);
// Whether the buffer has the bytes of make_test_buffer().
bool is_test_buffer(const Buffer& buffer, std::size_t size, unsigned seed);

}  // namespace gradwire::transport
