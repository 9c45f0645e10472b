#include "gradwire/rpc/flight/call_report.h"

#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/flight/code_name.h"
#include "gradwire/rpc/membership/shared_id.h"

namespace gradwire::rpc {

void find_nested(const std::vector<CallReport>& made, std::vector<CallReport>& served) {
  HashSet<CallIdentity> parents;
  for (const CallReport& call : made) {
    if (call.parent.kind == CallParent::Kind::kCall)
      parents.insert({call.parent.incarnation, call.parent.number});
  }
  for (CallReport& call : served) {
    if (call.state == CallState::kRunning && parents.contains(call.identity)) call.state = CallState::kNested;
  }
}

JsonLine agent_header(const Worker& worker, const CallRecorder& recorder, uint64_t recorded,
                      absl::string_view reason, FlightDump dump) {
  JsonLine header = flight_header("agent", reason);
  header.text("worker", absl::string_view(worker.name).substr(0, 128)).number("id", shared_id(worker));
  header.id("incarnation", worker.incarnation);
  header.text("dump", dump == FlightDump::kCrash ? "crash" : "ordinary");
  header.number("capacity", static_cast<int64_t>(recorder.capacity()));
  header.number("recorded", static_cast<int64_t>(recorded));
  return header;
}

void add_parent(JsonLine& line, const CallParent& parent) {
  if (!parent) return;
  if (parent.kind == CallParent::Kind::kTrace) {
    line.text("parent", "trace").id("trace_high", parent.incarnation).id("trace_low", parent.number);
    return;
  }
  line.text("parent", parent.kind == CallParent::Kind::kCall ? "call" : "pass");
  line.id("parent_worker", parent.incarnation).number("parent_number", static_cast<int64_t>(parent.number));
}

JsonLine event_line(const CallEvent& event, uint64_t self) {
  const bool pass = event.kind == CallEvent::Kind::kPass;
  JsonLine line(pass ? "pass" : "call");
  if (pass) {
    line.id("root", event.peer);
  } else {
    const bool made = event.kind == CallEvent::Kind::kMade;
    line.text("side", made ? "made" : "served").id("caller", made ? self : event.peer).id("peer", event.peer);
  }
  line.number("number", static_cast<int64_t>(event.number));
  line.text(event.name_cut ? "name_end" : "name", event.name_view());
  add_parent(line, event.parent);
  line.number("began", event.began);
  if (event.started != 0) line.number("started", event.started);
  if (event.over()) line.number("ended", event.ended).text("code", code_name(event.code));
  return line;
}

JsonLine member_line(const Worker& member) {
  JsonLine line("worker");
  line.id("incarnation", member.incarnation).number("id", member.id);
  line.text("name", absl::string_view(member.name).substr(0, 256));
  return line;
}

}  // namespace gradwire::rpc
