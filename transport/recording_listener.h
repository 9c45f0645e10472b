#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/base/mutex.h"
#include "gradwire/transport/connection.h"

namespace gradwire::transport {

// A listener for tests: keeps what it hears until somebody asks for it. Thread-safe.
class RecordingListener : public ConnectionListener {
 public:
  // Called for each message before it is recorded.
  using Hook = std::function<void(Connection&, const Message&)>;
  explicit RecordingListener(Hook hook = nullptr) : hook_(std::move(hook)) {}

  void on_message(Connection& connection, Message message) override;
  void on_closed(Connection& connection, absl::Status reason) override;

  uint64_t max_message_bytes() const override { return max_message_bytes_.load(); }
  // From the next message on.
  void take_at_most(uint64_t bytes) { max_message_bytes_ = bytes; }

  bool introduced() const override { return introduced_.load(); }
  void set_introduced(bool introduced) { introduced_ = introduced; }

  // While held back, on_message does not return, as if the receiver read nothing.
  void hold_back();
  void let_go();

  // Waits until `count` messages have come or the connection is closed, and returns all that have come so
  // far.
  std::vector<Message> wait_for_messages(std::size_t count);
  // Waits for on_closed and returns its reason; Internal when it does not come.
  absl::Status wait_closed();

  std::size_t message_count();
  int closed_count();
  // Messages that came after on_closed, or while another call was running: never any.
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
  bool held_back_ ABSL_GUARDED_BY(mutex_) = false;
  bool in_call_ ABSL_GUARDED_BY(mutex_) = false;
  int closed_count_ ABSL_GUARDED_BY(mutex_) = 0;
  int misplaced_calls_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status reason_ ABSL_GUARDED_BY(mutex_);
  std::thread::id last_thread_ ABSL_GUARDED_BY(mutex_);
};

// How long a test waits for what must happen.
inline constexpr absl::Duration kTestTimeout = absl::Seconds(60);

// A buffer of `size` bytes that follow from `seed`.
Buffer make_test_buffer(std::size_t size, unsigned seed, Buffer::Sharing sharing = Buffer::Sharing::kOwned);
// Whether they are the bytes of make_test_buffer.
bool is_test_buffer(const Buffer& buffer, std::size_t size, unsigned seed);

}  // namespace gradwire::transport
