// A ring of records that is written without locks. write() and append_line() form a sequence lock for each
// slot. set_state() changes a record in place.

#include "gradwire/collectives/flight/flight_recorder.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/mutex.h"
#include "gradwire/collectives/reduce_op.h"

namespace gradwire::collectives {
namespace {

struct Recorders {
  Mutex mutex;
  std::set<const FlightRecorder*> alive ABSL_GUARDED_BY(mutex);
};

Recorders& recorders() {
  static Recorders* instance = new Recorders;
  return *instance;
}

constexpr int kStateShift = 32;
constexpr int kCodeShift = 40;

uint64_t pack(const OperationRecord& record, FlightRecorder::State state) {
  return static_cast<uint64_t>(record.operation) | uint64_t{static_cast<uint8_t>(record.reduction)} << 8 |
         uint64_t{record.multiplies} << 16 | uint64_t{record.dimensions} << 24 |
         static_cast<uint64_t>(state) << kStateShift;
}

absl::string_view name_of_state(uint8_t state) {
  constexpr absl::string_view kNames[] = {"queued", "running", "done", "failed"};
  return state < 4 ? kNames[state] : "?";
}

}  // namespace

FlightRecorder::FlightRecorder(std::string title)
    : title_(std::move(title)), start_(coarse_now()), slots_(std::make_unique<Slot[]>(kCapacity)) {
  MutexLock lock(recorders().mutex);
  recorders().alive.insert(this);
}

FlightRecorder::~FlightRecorder() {
  MutexLock lock(recorders().mutex);
  recorders().alive.erase(this);
}

void FlightRecorder::write(uint64_t number, const OperationRecord& record, uint64_t sequence, State state,
                           uint32_t now) {
  // Writers and readers do not lock. Problem: a reader must notice that a record changes while it reads it.
  //   1. Set `number` to 0: the slot is invalid.
  //   2. Write the other fields with release order. A reader that loads one of the new values with acquire
  //      order also sees the 0 of step 1 when it reads `number` for the second time.
  //   3. Set `number` to the mark of the new record.
  // append_line() reads `number`, the fields, and `number` again, and accepts the record only if `number` is
  // the expected mark both times.
  constexpr auto kRelease = std::memory_order_release;
  Slot& slot = slots_[number % kCapacity];
  slot.number.store(0, std::memory_order_relaxed);
  slot.began.store(now, kRelease);
  slot.started.store(now, kRelease);
  slot.ended.store(now, kRelease);
  slot.sequence.store(sequence, kRelease);
  slot.small.store(pack(record, state), kRelease);
  slot.dtype.store(record.dtype, kRelease);
  for (int i = 0; i < kSizes; ++i) slot.sizes[i].store(record.sizes[i], kRelease);
  slot.peer.store(record.peer, kRelease);
  slot.tag.store(record.tag, kRelease);
  slot.number.store(mark_of(number), kRelease);
}

void FlightRecorder::set_state(uint64_t number, State state, CoarseTime now, absl::StatusCode code) {
  Slot& slot = slots_[number % kCapacity];
  // An operation may end after kCapacity later ones have begun. Its slot then holds another record. The check
  // and the stores are not one step, so in theory a record that is overwritten in between gets a wrong state.
  // That affects only the text of the record.
  if (slot.number.load(std::memory_order_relaxed) != mark_of(number)) return;
  (state == State::kRunning ? slot.started : slot.ended).store(since_start(now), std::memory_order_relaxed);
  // One thread at a time changes the state of an operation, so a load and a store are enough.
  const uint64_t others = slot.small.load(std::memory_order_relaxed) & ((uint64_t{1} << kStateShift) - 1);
  slot.small.store(
      others | static_cast<uint64_t>(state) << kStateShift | static_cast<uint64_t>(code) << kCodeShift,
      std::memory_order_release);
}

bool FlightRecorder::append_line(uint64_t number, uint32_t now, std::string& out) const {
  constexpr auto kAcquire = std::memory_order_acquire;
  const Slot& slot = slots_[number % kCapacity];
  if (slot.number.load(kAcquire) != mark_of(number)) return false;
  const uint64_t sequence = slot.sequence.load(kAcquire);
  const uint64_t small = slot.small.load(kAcquire);
  const char* dtype = slot.dtype.load(kAcquire);
  uint32_t sizes[kSizes];
  for (int i = 0; i < kSizes; ++i) sizes[i] = slot.sizes[i].load(kAcquire);
  const int32_t peer = slot.peer.load(kAcquire);
  const int32_t tag = slot.tag.load(kAcquire);
  const uint32_t began = slot.began.load(kAcquire);
  const uint32_t started = slot.started.load(kAcquire);
  const uint32_t ended = slot.ended.load(kAcquire);
  if (slot.number.load(std::memory_order_relaxed) != mark_of(number)) return false;

  // The inverse of pack().
  const auto operation = static_cast<Operation>(small & 0xff);
  const auto reduction = static_cast<int8_t>(small >> 8 & 0xff);
  const int dimensions = static_cast<int>(small >> 24 & 0xff);
  const auto state = static_cast<uint8_t>(small >> kStateShift & 0xff);
  const auto code = static_cast<absl::StatusCode>(small >> kCodeShift & 0xff);
  const auto seconds = [](uint32_t since, uint32_t until) {
    return static_cast<double>(until - since) / 1000;
  };

  absl::StrAppend(&out, "  ", sequence == kNoSequence ? "-" : absl::StrCat("#", sequence), " ",
                  name_of(operation));
  if (dtype != nullptr) {
    const int shown = std::min(dimensions, kSizes);
    absl::StrAppend(&out, " ", dtype, "[", absl::StrJoin(sizes, sizes + shown, ", "),
                    dimensions > shown ? ", ..." : "", "]");
  }
  if (reduction >= 0) {
    absl::StrAppend(&out, " ", to_string(static_cast<ReduceOp>(reduction)),
                    (small >> 16 & 1) != 0 ? " premul" : "");
  }
  if (is_point_to_point(operation)) {
    absl::StrAppend(&out, operation == Operation::kSend ? " to " : " from ",
                    peer < 0 ? std::string("any") : absl::StrCat(peer), " tag ", tag);
  } else if (peer >= 0) {
    absl::StrAppend(&out, " root ", peer);
  }
  absl::StrAppend(&out, ": ", name_of_state(state));
  if (state == static_cast<uint8_t>(State::kFailed))
    absl::StrAppend(&out, " (", absl::StatusCodeToString(code), ")");
  const bool over = state >= static_cast<uint8_t>(State::kDone);
  absl::StrAppendFormat(&out, ", called %.3f s ago", seconds(began, now));
  if (started != began) absl::StrAppendFormat(&out, ", queued %.3f s", seconds(began, started));
  if (over) absl::StrAppendFormat(&out, ", took %.3f s", seconds(started, ended));
  absl::StrAppend(&out, "\n");
  return true;
}

std::string FlightRecorder::text() const {
  const uint64_t next = next_.load(std::memory_order_acquire);
  const uint64_t first = next > kCapacity ? next - kCapacity : 0;
  const uint32_t now = since_start(coarse_now());
  std::string out = absl::StrCat(title_, ", the last ", next - first, " operations:\n");
  for (uint64_t number = first; number < next; ++number) append_line(number, now, out);
  return out;
}

std::string FlightRecorder::all() {
  MutexLock lock(recorders().mutex);
  std::string out;
  for (const FlightRecorder* recorder : recorders().alive) absl::StrAppend(&out, recorder->text());
  return out;
}

}  // namespace gradwire::collectives
