#include "gradwire/collectives/flight/flight_recorder.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/flight/code_name.h"
#include "gradwire/base/flight/json_line.h"
#include "gradwire/base/flight/trace_settings.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/process/process_identity.h"
#include "gradwire/base/stable_hash.h"
#include "gradwire/collectives/flight/group_records.h"
#include "gradwire/collectives/reduce_op.h"

namespace gradwire::collectives {
namespace {

// The words of a record.
enum Word : std::size_t {
  kTimes,                   // When it started and when it ended, 32 bits each.
  kSequence,                // The sequence number.
  kSmall,                   // One byte each: operation, reduction, multiplies, dimensions, state, code.
  kDtype,                   // The name of the dtype, a pointer.
  kSizeWords,               // Four sizes in two words.
  kPlace = kSizeWords + 2,  // Peer and tag, 32 bits each.
};

constexpr int kStateShift = 32;
constexpr int kCodeShift = 40;

uint64_t pair_of(uint32_t high, uint32_t low) { return uint64_t{high} << 32 | low; }

uint64_t pack(const OperationRecord& record, FlightRecorder::State state) {
  return static_cast<uint64_t>(record.operation) | uint64_t{static_cast<uint8_t>(record.reduction)} << 8 |
         uint64_t{record.multiplies} << 16 | uint64_t{record.dimensions} << 24 |
         static_cast<uint64_t>(state) << kStateShift;
}

absl::string_view name_of_state(uint8_t state) {
  constexpr absl::string_view kNames[] = {"queued", "running", "done", "failed"};
  return state < 4 ? kNames[state] : "?";
}

// All recorders of the process, for view_all().
struct Recorders {
  ProcessMutex mutex;
  std::set<const FlightRecorder*> alive ABSL_GUARDED_BY(mutex);
};

Recorders& recorders() {
  static auto* instance = new Recorders;
  return *instance;
}

// Processes of two hosts or containers can have the same id, and their files may come to one directory.
std::string next_file_name() {
  static std::atomic<uint64_t> next{0};
  const auto identity = static_cast<uint32_t>(stable_hash(encode(this_process())));
  return absl::StrCat("group-", getpid(), "-", absl::Hex(identity, absl::kZeroPad8), "-", next.fetch_add(1));
}

// The number of a group, from 1: that in the name of its file, plus one.
uint64_t number_of(const FlightRecorder& recorder) {
  const absl::string_view name = recorder.file_name();
  uint64_t number = 0;
  return absl::SimpleAtoi(name.substr(name.rfind('-') + 1), &number) ? number + 1 : 0;
}

}  // namespace

struct FlightRecorder::Read {
  Operation operation;
  int8_t reduction;
  bool multiplies;
  int dimensions;
  uint8_t state;
  uint8_t code;
  const char* dtype;
  std::array<uint32_t, FlightRecorder::kSizes> sizes;
  uint64_t sequence;
  int32_t peer;
  int32_t tag;
  uint32_t began;
  uint32_t started;
  uint32_t ended;

  bool over() const { return state >= static_cast<uint8_t>(State::kDone); }
};

FlightRecorder::FlightRecorder(std::string title)
    : title_(std::move(title)),
      file_name_(next_file_name()),
      start_(coarse_now()),
      ring_(trace_settings().group_records(kCapacity)) {
  attach();
  MutexLock lock(recorders().mutex);
  recorders().alive.insert(this);
}

FlightRecorder::~FlightRecorder() {
  {
    MutexLock lock(recorders().mutex);
    recorders().alive.erase(this);
  }
  detach();
}

FlightRecorder::Words FlightRecorder::words_of(const OperationRecord& record, uint64_t sequence, State state,
                                               uint32_t now) {
  return {pair_of(now, now),
          sequence,
          pack(record, state),
          reinterpret_cast<uintptr_t>(record.dtype),
          pair_of(record.sizes[0], record.sizes[1]),
          pair_of(record.sizes[2], record.sizes[3]),
          pair_of(static_cast<uint32_t>(record.peer), static_cast<uint32_t>(record.tag))};
}

void FlightRecorder::set_state(uint64_t number, State state, CoarseTime now, absl::StatusCode code) {
  // One thread at a time changes the state of an operation, so a load and a store are enough.
  const uint64_t times = ring_.get(number, kTimes);
  const uint64_t changed = state == State::kRunning
                               ? pair_of(since_start(now), static_cast<uint32_t>(times))
                               : pair_of(static_cast<uint32_t>(times >> 32), since_start(now));
  if (!ring_.set(number, kTimes, changed)) return;
  const uint64_t others = ring_.get(number, kSmall) & ((uint64_t{1} << kStateShift) - 1);
  ring_.set(number, kSmall,
            others | static_cast<uint64_t>(state) << kStateShift | static_cast<uint64_t>(code) << kCodeShift);
}

// The inverse of words_of(). Async-signal-safe.
bool FlightRecorder::read(uint64_t number, Read& out) const {
  Words words;
  if (!ring_.read(number, out.began, words)) return false;
  const uint64_t small = words[kSmall];
  out.operation = static_cast<Operation>(small & 0xff);
  out.reduction = static_cast<int8_t>(small >> 8 & 0xff);
  out.multiplies = (small >> 16 & 1) != 0;
  out.dimensions = static_cast<int>(small >> 24 & 0xff);
  out.state = static_cast<uint8_t>(small >> kStateShift & 0xff);
  out.code = static_cast<uint8_t>(small >> kCodeShift & 0xff);
  out.dtype = reinterpret_cast<const char*>(static_cast<uintptr_t>(words[kDtype]));
  for (int i = 0; i < FlightRecorder::kSizes; ++i)
    out.sizes[i] = static_cast<uint32_t>(words[kSizeWords + i / 2] >> (i % 2 == 0 ? 32 : 0));
  out.sequence = words[kSequence];
  out.peer = static_cast<int32_t>(words[kPlace] >> 32);
  out.tag = static_cast<int32_t>(words[kPlace]);
  out.started = static_cast<uint32_t>(words[kTimes] >> 32);
  out.ended = static_cast<uint32_t>(words[kTimes]);
  return true;
}

std::string FlightRecorder::text(std::size_t lines) const {
  const uint64_t next = ring_.added();
  const uint64_t first = std::max(ring_.first(), next - std::min<uint64_t>(next, lines));
  const uint32_t now = since_start(coarse_now());
  const auto seconds = [](uint32_t since, uint32_t until) {
    return static_cast<double>(until - since) / 1000;
  };
  std::string out = absl::StrCat(title_, ", the last ", next - first, " operations:\n");
  for (uint64_t number = first; number < next; ++number) {
    Read record;
    if (!read(number, record)) continue;
    absl::StrAppend(&out, "  ", record.sequence == kNoSequence ? "-" : absl::StrCat("#", record.sequence),
                    " ", name_of(record.operation));
    if (record.dtype != nullptr) {
      const int shown = std::min(record.dimensions, kSizes);
      absl::StrAppend(&out, " ", record.dtype, "[",
                      absl::StrJoin(record.sizes.begin(), record.sizes.begin() + shown, ", "),
                      record.dimensions > shown ? ", ..." : "", "]");
    }
    if (record.reduction >= 0) {
      absl::StrAppend(&out, " ", to_string(static_cast<ReduceOp>(record.reduction)),
                      record.multiplies ? " premul" : "");
    }
    if (is_point_to_point(record.operation)) {
      absl::StrAppend(&out, record.operation == Operation::kSend ? " to " : " from ",
                      record.peer < 0 ? std::string("any") : absl::StrCat(record.peer), " tag ", record.tag);
    } else if (record.peer >= 0) {
      absl::StrAppend(&out, " root ", record.peer);
    }
    absl::StrAppend(&out, ": ", name_of_state(record.state));
    if (record.state == static_cast<uint8_t>(State::kFailed))
      absl::StrAppend(&out, " (", code_name(record.code), ")");
    absl::StrAppendFormat(&out, ", called %.3f s ago", seconds(record.began, now));
    if (record.started != record.began)
      absl::StrAppendFormat(&out, ", queued %.3f s", seconds(record.began, record.started));
    if (record.over()) absl::StrAppendFormat(&out, ", took %.3f s", seconds(record.started, record.ended));
    absl::StrAppend(&out, "\n");
  }
  return out;
}

// Times are written on Clock::system(), of which CoarseTime is a part.
void FlightRecorder::write(FlightSink& sink, absl::string_view reason, FlightDump /*dump*/) const {
  constexpr int64_t kNanoseconds = 1'000'000;
  const auto time_of = [this](uint32_t since) { return (start_ + int64_t{since}) * kNanoseconds; };
  JsonLine header = flight_header("group", reason);
  const uint64_t next = ring_.added();
  header.text("title", title_);
  header.number("capacity", static_cast<int64_t>(ring_.capacity()))
      .number("recorded", static_cast<int64_t>(next));
  sink.line(header.end(), /*open=*/false);
  int64_t lines = 0;
  for (uint64_t number = ring_.first(); number < next; ++number) {
    Read record;
    if (!read(number, record)) continue;
    JsonLine line("collective");
    if (record.sequence != kNoSequence) line.number("sequence", static_cast<int64_t>(record.sequence));
    line.text("operation", name_of(record.operation));
    if (record.dtype != nullptr) {
      line.text("dtype", record.dtype).number("dimensions", record.dimensions);
      // A fixed list of keys: "size0", "size1", ...
      constexpr absl::string_view kKeys[] = {"size0", "size1", "size2", "size3"};
      for (int i = 0; i < std::min(record.dimensions, kSizes); ++i) line.number(kKeys[i], record.sizes[i]);
    }
    if (is_point_to_point(record.operation)) line.number("tag", record.tag);
    if (record.peer >= 0) line.number("peer_rank", record.peer);
    line.text("state", name_of_state(record.state));
    if (record.state == static_cast<uint8_t>(State::kFailed)) line.text("code", code_name(record.code));
    line.number("began", time_of(record.began)).number("started", time_of(record.started));
    if (record.over()) line.number("ended", time_of(record.ended));
    sink.line(line.end(), /*open=*/!record.over());
    ++lines;
  }
  JsonLine end("end");
  sink.line(end.number("lines", lines).end(), /*open=*/false);
}

FlightRecorder::View FlightRecorder::view() const {
  const uint32_t now = since_start(coarse_now());
  View view{.title = title_, .recorded = ring_.added(), .last = std::nullopt, .oldest_open = std::nullopt};
  for (uint64_t number = ring_.first(); number < view.recorded; ++number) {
    Read record;
    if (!read(number, record)) continue;
    const Seen seen{record.operation, record.sequence, static_cast<State>(record.state), record.peer,
                    absl::Milliseconds(now - std::min(record.began, now))};
    const bool in_sequence = seen.sequence != kNoSequence;
    if (in_sequence || !view.last || view.last->sequence == kNoSequence) view.last = seen;
    if (!view.oldest_open && !record.over()) view.oldest_open = seen;
  }
  return view;
}

FlightRecorder::Views FlightRecorder::view_all(std::size_t most) {
  Views views;
  MutexLock lock(recorders().mutex);
  views.total = recorders().alive.size();
  for (const FlightRecorder* recorder : recorders().alive) {
    if (views.recorders.size() >= most) break;
    views.recorders.push_back(recorder->view());
  }
  std::sort(views.recorders.begin(), views.recorders.end(),
            [](const View& a, const View& b) { return a.title < b.title; });
  return views;
}

uint64_t write_group_record(uint64_t number, FlightSink& sink, absl::string_view reason) {
  MutexLock lock(recorders().mutex);
  const FlightRecorder* found = nullptr;
  for (const FlightRecorder* each : recorders().alive) {
    if (number_of(*each) >= number && (found == nullptr || number_of(*each) < number_of(*found)))
      found = each;
  }
  if (found == nullptr) return 0;
  found->write(sink, reason, FlightDump::kOrdinary);
  return number_of(*found);
}

}  // namespace gradwire::collectives
