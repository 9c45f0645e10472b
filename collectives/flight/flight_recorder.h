#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/flight/flight_source.h"
#include "gradwire/base/flight/record_ring.h"
#include "gradwire/collectives/flight/coarse_clock.h"
#include "gradwire/collectives/flight/operation.h"

namespace gradwire::collectives {

// Records the last operations of one group, so that a user can find out why a job hangs. Recording allocates
// no memory and takes no lock. Thread-safe; what it writes leaves out a record that is overwritten while it
// is read.
class FlightRecorder final : public FlightSource {
 public:
  static constexpr uint64_t kCapacity = 2048;
  // The sequence number of operations that have none: point-to-point messages.
  static constexpr uint64_t kNoSequence = ~uint64_t{0};

  enum class State : uint8_t { kQueued, kRunning, kDone, kFailed };

  explicit FlightRecorder(std::string title);
  ~FlightRecorder() override;
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  // Begins a record and returns its number, for set_state. An operation that has already ended is recorded
  // with its final state. `now`, here and below: coarse_now().
  uint64_t begin(const OperationRecord& record, uint64_t sequence, State state, CoarseTime now) {
    return ring_.add(since_start(now), words_of(record, sequence, state, since_start(now)));
  }
  // Changes the state of a record; does nothing if the record has been overwritten. `code`: the error's code,
  // for kFailed.
  void set_state(uint64_t number, State state, CoarseTime now, absl::StatusCode code = absl::StatusCode::kOk);

  // The title and one line for each record, oldest first.
  std::string text() const { return text(kCapacity); }

  // FlightSource. The text has the last `lines` records.
  std::string text(std::size_t lines) const override;
  void write(FlightSink& sink, absl::string_view reason, FlightDump dump) const override;
  absl::string_view file_name() const override { return file_name_; }

  // A record as an observer sees it.
  struct Seen {
    Operation operation = Operation::kBarrier;
    uint64_t sequence = kNoSequence;
    State state = State::kQueued;
    int32_t peer = OperationRecord::kNoPeer;
    // Time since the operation began.
    absl::Duration age;
  };
  struct View {
    std::string title;
    // Number of operations that were recorded.
    uint64_t recorded = 0;
    // The last one of the group's sequence (messages from point to point only if there is no other), and the
    // oldest one that has not ended.
    std::optional<Seen> last;
    std::optional<Seen> oldest_open;
  };
  struct Views {
    std::vector<View> recorders;
    std::size_t total = 0;
  };
  // At most `most` recorders of the process, sorted by title. Reads all records, without a lock that
  // recording takes.
  static Views view_all(std::size_t most);

 private:
  static constexpr int kSizes = 4;
  // One record fills one cache line. Its head is the time of the call. Times are milliseconds since the
  // recorder was made.
  static constexpr std::size_t kWords = 7;
  using Words = RecordRing<kWords>::Words;
  // A record that has been read.
  struct Read;

  uint32_t since_start(CoarseTime now) const { return static_cast<uint32_t>(now - start_); }
  static Words words_of(const OperationRecord& record, uint64_t sequence, State state, uint32_t now);
  bool read(uint64_t number, Read& out) const;
  View view() const;

  const std::string title_;
  const std::string file_name_;
  const CoarseTime start_;
  RecordRing<kWords> ring_;
};

}  // namespace gradwire::collectives
