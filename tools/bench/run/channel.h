#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/tools/bench/run/bench_process.h"

namespace gradwire::bench {

// A request from the coordinator to a bench process. Each order gets one Answer, except kQuit. The
// coordinator sends the next order after the answer.
struct Order {
  enum class Kind : uint8_t { kListen, kJoin, kRun, kUsage, kQuit };
  Kind kind = Kind::kQuit;
  Endpoint endpoint;  // kListen, kJoin
  Task task;          // kRun
};

struct Answer {
  std::string error;        // Empty if the order succeeded.
  std::string address;      // kListen
  Measurement measurement;  // kRun
  double cpu_us = 0;        // kUsage
};

// One end of the socket between the coordinator and a bench process. Both run the same program, so the format
// is CBOR without a version. Owns the descriptor. Not thread-safe.
class Channel {
 public:
  explicit Channel(int fd) : fd_(fd) {}
  ~Channel();
  Channel(Channel&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Channel& operator=(Channel&&) = delete;

  absl::Status send(const Order& order);
  absl::Status send(const Answer& answer);
  // Errors: Unavailable when the other end has closed its socket, DeadlineExceeded, InvalidArgument for a
  // malformed message.
  absl::StatusOr<Order> receive_order();
  absl::StatusOr<Answer> receive_answer(absl::Duration timeout);

 private:
  absl::Status write(const std::vector<uint8_t>& message);
  absl::StatusOr<std::vector<uint8_t>> read(absl::Duration timeout);
  absl::Status read_bytes(void* data, std::size_t size, absl::Time deadline);

  int fd_;
};

}  // namespace gradwire::bench
