#include "gradwire/transport/recording_listener.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "gradwire/base/clock.h"

namespace gradwire::transport {
namespace {

// The bytes of test buffers repeat themselves after this number.
constexpr std::size_t kPeriod = std::size_t{1} << 21;

// The bytes of a test buffer with the seed 0. A table, because large buffers are compared byte by byte in
// programs without optimisation.
const std::string& test_bytes() {
  static const auto* const bytes = [] {
    auto* const table = new std::string(kPeriod, '\0');
    char* const data = table->data();
    for (std::size_t i = 0; i < kPeriod; ++i) data[i] = static_cast<char>((i * 2'654'435'761u) >> 13);
    return table;
  }();
  return *bytes;
}

// Calls `visit` with each position at which a piece of the table begins, the piece, and its length. A buffer
// with another seed begins elsewhere in the table.
void for_pieces(std::size_t size, unsigned seed,
                absl::FunctionRef<void(std::size_t position, const char* piece, std::size_t length)> visit) {
  std::size_t begin = seed * std::size_t{1'299'709} % kPeriod;
  for (std::size_t position = 0; position < size;) {
    const std::size_t length = std::min(size - position, kPeriod - begin);
    visit(position, test_bytes().data() + begin, length);
    position += length;
    begin = 0;
  }
}

}  // namespace

void RecordingListener::on_message(Connection& connection, Message message) {
  begin_call();
  if (hook_ != nullptr) hook_(connection, message);
  MutexLock lock(mutex_);
  while (held_back_) changed_.wait(mutex_);
  messages_.push_back(std::move(message));
  in_call_ = false;
  changed_.notify_all();
}

void RecordingListener::on_arriving(Connection& connection, const std::string& header, uint64_t bytes,
                                    uint64_t arrived) {
  const uint64_t counted = connection.bytes_arrived();
  MutexLock lock(mutex_);
  announced_.push_back({header, bytes, arrived, messages_.size(), counted});
}

std::vector<RecordingListener::Announced> RecordingListener::announced() {
  MutexLock lock(mutex_);
  return announced_;
}

void RecordingListener::on_lost(Connection&, std::string header, absl::Status reason) {
  MutexLock lock(mutex_);
  lost_.push_back({std::move(header), std::move(reason)});
}

std::vector<RecordingListener::Lost> RecordingListener::lost() {
  MutexLock lock(mutex_);
  return lost_;
}

void RecordingListener::on_closed(Connection&, absl::Status reason) {
  begin_call();
  MutexLock lock(mutex_);
  ++closed_count_;
  reason_ = std::move(reason);
  in_call_ = false;
  changed_.notify_all();
}

void RecordingListener::begin_call() {
  MutexLock lock(mutex_);
  if (in_call_ || closed_count_ > 0) ++misplaced_calls_;
  in_call_ = true;
  last_thread_ = std::this_thread::get_id();
}

void RecordingListener::hold_back() {
  MutexLock lock(mutex_);
  held_back_ = true;
}

void RecordingListener::resume() {
  MutexLock lock(mutex_);
  held_back_ = false;
  changed_.notify_all();
}

std::vector<Message> RecordingListener::wait_for_messages(std::size_t count) {
  absl::Time deadline = Clock::system().now() + kTestTimeout;
  MutexLock lock(mutex_);
  while (messages_.size() < count && closed_count_ == 0 && Clock::system().now() < deadline) {
    Clock::system().wait_until(mutex_, changed_, deadline);
  }
  return messages_;
}

std::vector<Message> RecordingListener::take_messages(std::size_t count) {
  (void)wait_for_messages(count);
  MutexLock lock(mutex_);
  return std::exchange(messages_, {});
}

absl::Status RecordingListener::wait_closed() {
  absl::Time deadline = Clock::system().now() + kTestTimeout;
  MutexLock lock(mutex_);
  while (closed_count_ == 0) {
    if (Clock::system().now() >= deadline)
      return absl::InternalError("on_closed() was not called within the timeout of the test");
    Clock::system().wait_until(mutex_, changed_, deadline);
  }
  return reason_;
}

std::size_t RecordingListener::message_count() {
  MutexLock lock(mutex_);
  return messages_.size();
}

int RecordingListener::closed_count() {
  MutexLock lock(mutex_);
  return closed_count_;
}

int RecordingListener::misplaced_calls() {
  MutexLock lock(mutex_);
  return misplaced_calls_;
}

std::thread::id RecordingListener::last_thread() {
  MutexLock lock(mutex_);
  return last_thread_;
}

Buffer make_test_buffer(std::size_t size, unsigned seed, Buffer::Sharing sharing) {
  auto bytes = std::make_shared<std::vector<char>>(size);
  for_pieces(size, seed, [&](std::size_t position, const char* piece, std::size_t length) {
    std::memcpy(bytes->data() + position, piece, length);
  });
  return Buffer(bytes->data(), size, bytes, sharing);
}

bool is_test_buffer(const Buffer& buffer, std::size_t size, unsigned seed) {
  if (buffer.size() != size) return false;
  const char* bytes = static_cast<const char*>(buffer.data());
  bool equal = true;
  for_pieces(size, seed, [&](std::size_t position, const char* piece, std::size_t length) {
    equal = equal && std::memcmp(bytes + position, piece, length) == 0;
  });
  return equal;
}

}  // namespace gradwire::transport
