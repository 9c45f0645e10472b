#include "gradwire/rpc/inspect/read_flight.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gradwire/collectives/flight/group_records.h"
#include "gradwire/rpc/flight/event_line.h"
#include "gradwire/rpc/inspect/limits.h"
#include "gradwire/rpc/link/peers.h"

namespace gradwire::rpc {
namespace {

constexpr char kReason[] = "an observer has asked";
// The names of workers are only in the first part, and take at most this part of it.
constexpr std::size_t kMaxMemberBytes = kMaxFlightBytes / 2;

// FlightQuestion.since_us in nanoseconds.
int64_t since_of(const proto::FlightQuestion& question) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 1000;
  return std::clamp<int64_t>(question.since_us(), 0, kMost) * 1000;
}

void add(std::string& lines, JsonLine line) { absl::StrAppend(&lines, line.end(), "\n"); }

// 1. The first part has the header and the workers.
// 2. Then all events follow from the wanted one on, until the part is full or kMostVisited were visited.
// Those
//    that had ended before the period are left out.
void read_events(const AgentRuntime& runtime, const Peers& peers, const proto::FlightQuestion& question,
                 proto::FlightPart& part) {
  const CallRecorder& recorder = *runtime.recorder;
  const uint64_t end = recorder.next();
  const uint64_t first = recorder.first();
  const int64_t since = since_of(question);
  std::string& lines = *part.mutable_lines();
  part.set_recorded(end);
  if (question.from() == 0) {
    add(lines, agent_header(runtime.self, recorder, end, kReason, FlightDump::kOrdinary));
    for (const Worker& member : peers.workers()) {
      if (lines.size() < kMaxMemberBytes) add(lines, member_line(member));
    }
  }
  const uint64_t wanted = std::max(question.from(), question.begun());
  part.set_missing(first - std::min(first, wanted));
  uint64_t record = std::max(question.from(), first);
  // A question for a period that has not begun, for example, leaves out all records: it must not visit them
  // all at once.
  const uint64_t stop = end - std::min(end, record) > kMostVisited ? record + kMostVisited : end;
  for (; record < stop && lines.size() + JsonLine::kSize < kMaxFlightBytes; ++record) {
    CallEvent event;
    if (!recorder.read(record, event) || (event.over() && event.ended < since)) continue;
    add(lines, event_line(event, runtime.self.incarnation));
  }
  if (record < end) part.set_next(record);
}

// Keeps the header, and the newest lines of the period that fit.
class GroupSink : public FlightSink {
 public:
  explicit GroupSink(int64_t since) : since_(since) {}
  void line(absl::string_view json, bool open) override {
    if (header_.empty()) {
      header_ = absl::StrCat(json, "\n");
      return;
    }
    const bool before = !open && end_of(json) < since_;
    reaches_back_ = reaches_back_ || before;
    if (before) return;
    lines_.push_back(absl::StrCat(json, "\n"));
    bytes_ += lines_.back().size();
    while (header_.size() + bytes_ > kMaxFlightBytes) {
      bytes_ -= lines_.front().size();
      lines_.pop_front();
      ++dropped_;
    }
  }
  void write(proto::FlightPart& part) const {
    part.set_lines(header_);
    for (const std::string& line : lines_) part.mutable_lines()->append(line);
    part.set_missing(dropped_);
    part.set_overwritten(!reaches_back_);
  }

 private:
  // The texts of a line have no quotes that are not escaped, so this is the key.
  static int64_t end_of(absl::string_view json) {
    constexpr absl::string_view kKey = ",\"ended\":";
    constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
    const std::size_t at = json.rfind(kKey);
    if (at == json.npos) return kNever;
    absl::string_view number = json.substr(at + kKey.size());
    number = number.substr(0, number.find_first_not_of("0123456789"));
    int64_t time = 0;
    return absl::SimpleAtoi(number, &time) ? time : kNever;
  }

  const int64_t since_;
  std::string header_;
  std::deque<std::string> lines_;
  std::size_t bytes_ = 0;
  uint64_t dropped_ = 0;
  // Whether the ring has a record from before the period.
  bool reaches_back_ = false;
};

}  // namespace

void read_flight(const AgentRuntime& runtime, const Peers& peers, const proto::FlightQuestion& question,
                 proto::FlightPart& part) {
  if (question.group() == 0) return read_events(runtime, peers, question, part);
  GroupSink sink(since_of(question));
  part.set_group(collectives::write_group_record(question.group(), sink, kReason));
  sink.write(part);
}

}  // namespace gradwire::rpc
