#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/flight/record_ring.h"
#include "gradwire/rpc/flight/call_parent.h"

namespace gradwire::rpc {

// One event of an agent, as CallRecorder::read() returns it.
struct CallEvent {
  enum class Kind : uint8_t { kMade, kServed, kPass };
  static constexpr std::size_t kMaxName = 64;

  Kind kind = Kind::kMade;
  // For a call: the worker at the other end, and the number of its identity. The caller is this worker for
  // kMade, and `peer` for kServed. For a pass: its root, and its number there.
  uint64_t peer = 0;
  uint64_t number = 0;
  CallParent parent;
  // On Clock::system(), in nanoseconds. `started` is the time at which a served call began to run; 0 before.
  int64_t began = 0;
  int64_t started = 0;
  int64_t ended = 0;  // 0 until it has ended.
  uint8_t code = 0;   // How it has ended, an absl::StatusCode.
  // The last kMaxName bytes of the callee's name. It may hold any bytes. `name_cut`: there were more.
  char name[kMaxName] = {};
  std::size_t name_size = 0;
  bool name_cut = false;

  absl::string_view name_view() const { return {name, name_size}; }
  bool over() const { return ended != 0; }
};

// The last calls and passes of one agent. A call is recorded when it begins, and its record is changed when
// it ends. Recording takes some nanoseconds, takes no lock and allocates nothing; the clock is read by
// others. Thread-safe. The memory is 128 bytes for each record.
class CallRecorder {
 public:
  // The number of a record of a recorder that is off.
  static constexpr uint64_t kNone = ~uint64_t{0};

  // Keeps the last `capacity` records, rounded up to a power of two; 0 switches the recorder off.
  explicit CallRecorder(std::size_t capacity) {
    if (capacity > 0) ring_ = std::make_unique<Ring>(capacity);
  }

  // Records the beginning, and returns the number of the record for started() and ended().
  uint64_t begin(CallEvent::Kind kind, uint64_t peer, uint64_t number, const CallParent& parent,
                 absl::string_view name, absl::Time now);
  // The call begins to run.
  void started(uint64_t record, absl::Time now);
  void ended(uint64_t record, absl::Time now, absl::StatusCode code);

  bool is_on() const { return ring_ != nullptr; }
  std::size_t capacity() const { return ring_ == nullptr ? 0 : ring_->capacity(); }
  // The number after that of the newest record, and the number of the oldest one.
  uint64_t next() const { return ring_ == nullptr ? 0 : ring_->added(); }
  uint64_t first() const { return ring_ == nullptr ? 0 : ring_->first(); }
  // Reads a record. Returns false if it has been overwritten. Async-signal-safe.
  bool read(uint64_t record, CallEvent& event) const;

 private:
  static constexpr std::size_t kNameWords = CallEvent::kMaxName / sizeof(uint64_t);
  // Words of a record: those of the enumeration in the source file, and the name.
  static constexpr std::size_t kFixedWords = 7;
  using Ring = RecordRing<kFixedWords + kNameWords>;

  // Set once.
  std::unique_ptr<Ring> ring_;
};

}  // namespace gradwire::rpc
