#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "gradwire/collectives/flight/coarse_clock.h"
#include "gradwire/collectives/flight/operation.h"

namespace gradwire::collectives {

// Records the last operations of one group, so that a user can find out why a job hangs. Recording allocates
// no memory and takes no lock. Thread-safe; text() leaves out a record that is overwritten while it is read.
class FlightRecorder {
 public:
  static constexpr uint64_t kCapacity = 2000;
  // The sequence number of operations that have none: point-to-point messages.
  static constexpr uint64_t kNoSequence = ~uint64_t{0};

  enum class State : uint8_t { kQueued, kRunning, kDone, kFailed };

  explicit FlightRecorder(std::string title);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  // Begins a record and returns its number, for set_state. An operation that has already ended is recorded
  // with its final state. `now`, here and below: coarse_now().
  uint64_t begin(const OperationRecord& record, uint64_t sequence, State state, CoarseTime now) {
    const uint64_t number = next_.fetch_add(1, std::memory_order_relaxed);
    write(number, record, sequence, state, since_start(now));
    return number;
  }
  // Changes the state of a record; does nothing if the record has been overwritten. `code`: the error's code,
  // for kFailed.
  void set_state(uint64_t number, State state, CoarseTime now, absl::StatusCode code = absl::StatusCode::kOk);

  // The title and one line for each record, oldest first.
  std::string text() const;

  // The text of every recorder of the process.
  static std::string all();

 private:
  static constexpr int kSizes = 4;

  // One record; it fills one cache line. All words are atomic: a reader may see a half-written record,
  // notices that by `number`, and leaves the record out. Times are milliseconds since the recorder was made.
  struct alignas(64) Slot {
    // mark_of() the record's number; 0 while the record is being written.
    std::atomic<uint32_t> number{0};
    std::atomic<uint32_t> began{0};
    std::atomic<uint32_t> started{0};
    std::atomic<uint32_t> ended{0};
    std::atomic<uint64_t> sequence{0};
    // The small fields, one byte each: operation, reduction, multiplies, dimensions, state, code.
    std::atomic<uint64_t> small{0};
    std::atomic<const char*> dtype{nullptr};
    std::array<std::atomic<uint32_t>, kSizes> sizes{};
    std::atomic<int32_t> peer{0};
    std::atomic<int32_t> tag{0};
  };
  static_assert(sizeof(Slot) == 64);

  // The record's number in 32 bits; never 0.
  static uint32_t mark_of(uint64_t number) { return static_cast<uint32_t>(number % 0xffff'ffff) + 1; }
  uint32_t since_start(CoarseTime now) const { return static_cast<uint32_t>(now - start_); }
  void write(uint64_t number, const OperationRecord& record, uint64_t sequence, State state, uint32_t now);
  bool append_line(uint64_t number, uint32_t now, std::string& out) const;

  const std::string title_;
  const CoarseTime start_;
  const std::unique_ptr<Slot[]> slots_;
  std::atomic<uint64_t> next_{0};
};

}  // namespace gradwire::collectives
