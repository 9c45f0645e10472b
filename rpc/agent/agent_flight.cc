#include "gradwire/rpc/agent/agent_flight.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/flight/code_name.h"
#include "gradwire/base/flight/json_line.h"
#include "gradwire/rpc/callee/served_calls.h"
#include "gradwire/rpc/caller/caller.h"
#include "gradwire/rpc/core/worker.h"
#include "gradwire/rpc/flight/call_report.h"
#include "gradwire/rpc/link/peers.h"
#include "gradwire/rpc/runtime/runtime.h"

// The lines of a flight record are described in docs/observability.md.
namespace gradwire::rpc {
namespace {

int64_t nanoseconds(absl::Time time) {
  return time == absl::InfiniteFuture() ? 0 : absl::ToInt64Nanoseconds(time - absl::UnixEpoch());
}

// A worker's name may hold any character. The incarnation makes the file's name unique.
std::string file_name_of(const Worker& self) {
  std::string name = self.name.substr(0, 64);
  for (char& c : name) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_') c = '_';
  }
  return absl::StrCat(name, "-", absl::Hex(self.incarnation));
}

void write_event(FlightSink& sink, const CallEvent& event, uint64_t self) {
  JsonLine line = event_line(event, self);
  sink.line(line.end(), /*open=*/!event.over());
}

void write_open(FlightSink& sink, const CallReport& call, bool made) {
  JsonLine line("open");
  line.text("side", made ? "made" : "served").id("caller", call.identity.caller).id("peer", call.peer);
  line.number("number", static_cast<int64_t>(call.identity.number));
  line.text("name", absl::string_view(call.callee).substr(0, 256));
  add_parent(line, call.parent);
  line.number("since", nanoseconds(call.since)).number("deadline", nanoseconds(call.deadline));
  line.text("state", to_string(call.state));
  sink.line(line.end(), /*open=*/true);
}

// Names workers in texts.
class Names {
 public:
  explicit Names(const std::vector<Worker>& workers) {
    for (const Worker& worker : workers) names_[worker.incarnation] = worker.name;
  }
  std::string of(uint64_t incarnation) const {
    const auto found = names_.find(incarnation);
    return found == names_.end() ? absl::StrCat("worker 0x", absl::Hex(incarnation))
                                 : absl::StrCat("\"", found->second, "\"");
  }
  std::string of(const CallParent& parent) const {
    if (!parent) return "";
    if (parent.kind == CallParent::Kind::kTrace) {
      return absl::StrCat(", for trace ", absl::Hex(parent.incarnation, absl::kZeroPad16),
                          absl::Hex(parent.number, absl::kZeroPad16));
    }
    return absl::StrCat(", for ", parent.kind == CallParent::Kind::kCall ? "call #" : "pass #", parent.number,
                        " of ", of(parent.incarnation));
  }

 private:
  HashMap<uint64_t, std::string> names_;
};

std::string seconds(int64_t nanoseconds) {
  return absl::StrFormat("%.6f s", static_cast<double>(nanoseconds) / 1e9);
}

void append_open(std::string& out, const char* title, std::vector<CallReport> calls, bool made,
                 std::size_t lines, const Names& names, absl::Time now) {
  if (calls.empty()) return;
  absl::StrAppend(&out, "  ", title, ", ", calls.size(), ", oldest first:\n");
  std::sort(calls.begin(), calls.end(),
            [](const CallReport& a, const CallReport& b) { return a.since < b.since; });
  if (calls.size() > lines) calls.resize(lines);
  for (const CallReport& call : calls) {
    absl::StrAppend(&out, "    #", call.identity.number, " \"", absl::CHexEscape(call.callee), "\" ",
                    made ? "to " : "from ", names.of(call.peer), ": ", to_string(call.state), ", for ",
                    seconds(absl::ToInt64Nanoseconds(now - call.since)));
    if (call.deadline != absl::InfiniteFuture())
      absl::StrAppend(&out, ", deadline in ", seconds(absl::ToInt64Nanoseconds(call.deadline - now)));
    absl::StrAppend(&out, names.of(call.parent), "\n");
  }
}

}  // namespace

AgentFlight::AgentFlight(const Sources& sources)
    : sources_(sources),
      options_(sources.runtime.options.flight),
      file_name_(file_name_of(sources.runtime.self)) {
  attach();
}

AgentFlight::~AgentFlight() { detach(); }

OpenCalls AgentFlight::open_calls(bool services) const {
  // First the served calls: a handler that returns in between leaves no call without its parent.
  OpenCalls calls;
  calls.served = sources_.served.calls_in_progress();
  calls.made = sources_.caller.pending().waiting(/*services=*/true);
  // A handler may wait for a message of the framework.
  find_nested(calls.made, calls.served);
  if (!services) std::erase_if(calls.made, [](const CallReport& call) { return call.is_service; });
  return calls;
}

bool AgentFlight::dump_is_due(absl::Time now) {
  if (!options_.dump_on_timeout || !sources_.runtime.recorder->is_on()) return false;
  int64_t next = next_dump_.load();
  if (nanoseconds(now) < next) return false;
  // One of the threads that come here at the same time gets the dump.
  return next_dump_.compare_exchange_strong(next, options_.dump_interval == absl::InfiniteDuration()
                                                      ? std::numeric_limits<int64_t>::max()
                                                      : nanoseconds(now + options_.dump_interval));
}

// The timers' thread, which calls this, has other calls to end.
void AgentFlight::timed_out(const absl::Status& error, absl::Duration timeout) {
  if (timeout < options_.dump_timeouts_from || !dump_is_due(Clock::system().now())) return;
  sources_.runtime.executor->post_clean(
      [agent = sources_.runtime.agent, text = std::string(error.message())] {
        // Without the agent there is nothing to write. Errors are logged.
        if (const std::shared_ptr<Agent> alive = agent.lock())
          (void)dump_flight_records(absl::StrCat("a call timed out: ", text));
      });
}

void AgentFlight::write(FlightSink& sink, absl::string_view reason, FlightDump dump) const {
  const Worker& worker = sources_.runtime.self;
  const CallRecorder& recorder = *sources_.runtime.recorder;
  const uint64_t self = worker.incarnation;
  const uint64_t next = recorder.next();
  JsonLine header = agent_header(worker, recorder, next, reason, dump);
  sink.line(header.end(), /*open=*/false);
  int64_t lines = 0;
  if (dump == FlightDump::kOrdinary) {
    for (const Worker& member : sources_.peers.workers()) {
      JsonLine line = member_line(member);
      sink.line(line.end(), /*open=*/false);
      ++lines;
    }
    const OpenCalls open = open_calls(/*services=*/true);
    for (const CallReport& call : open.served) write_open(sink, call, /*made=*/false);
    for (const CallReport& call : open.made) write_open(sink, call, /*made=*/true);
    lines += static_cast<int64_t>(open.served.size() + open.made.size());
  }
  for (uint64_t record = recorder.first(); record < next; ++record) {
    CallEvent event;
    if (!recorder.read(record, event)) continue;
    write_event(sink, event, self);
    ++lines;
  }
  JsonLine end("end");
  sink.line(end.number("lines", lines).end(), /*open=*/false);
}

std::string AgentFlight::text(std::size_t lines) const {
  const absl::Time now = Clock::system().now();
  const CallRecorder& recorder = *sources_.runtime.recorder;
  const Names names(sources_.peers.workers());
  std::string out = absl::StrCat("worker \"", sources_.runtime.self.name, "\" (incarnation 0x",
                                 absl::Hex(sources_.runtime.self.incarnation), "):\n");
  const OpenCalls open = open_calls(/*services=*/true);
  append_open(out, "calls that it serves", open.served, /*made=*/false, lines, names, now);
  append_open(out, "calls that it has made", open.made, /*made=*/true, lines, names, now);
  const uint64_t next = recorder.next();
  const uint64_t first = std::max(recorder.first(), next - std::min<uint64_t>(next, lines));
  absl::StrAppend(&out, "  the last ", next - first, " of ", next, " recorded events:\n");
  for (uint64_t record = first; record < next; ++record) {
    CallEvent event;
    if (!recorder.read(record, event)) continue;
    const bool pass = event.kind == CallEvent::Kind::kPass;
    absl::StrAppend(&out, "    #", event.number, " ", pass ? "" : "\"", event.name_cut ? "..." : "",
                    absl::CHexEscape(event.name_view()), pass ? "" : "\"",
                    pass                                     ? " of "
                    : event.kind == CallEvent::Kind::kServed ? " from "
                                                             : " to ",
                    names.of(event.peer), ": began ", seconds(nanoseconds(now) - event.began), " ago");
    if (event.started != 0) absl::StrAppend(&out, ", queued ", seconds(event.started - event.began));
    absl::StrAppend(&out, event.over() ? absl::StrCat(", took ", seconds(event.ended - event.began), ", ",
                                                      code_name(event.code))
                                       : ", open");
    absl::StrAppend(&out, names.of(event.parent), "\n");
  }
  return out;
}

}  // namespace gradwire::rpc
