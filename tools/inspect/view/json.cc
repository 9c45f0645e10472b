#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "gradwire/tools/inspect/analysis/text.h"
#include "gradwire/tools/inspect/view/report.h"

// The values are those of google.protobuf.Struct, whose JSON is the one that it describes. Its numbers are
// doubles, so incarnations and numbers of calls are strings.
namespace gradwire::inspect {
namespace {

using Json = google::protobuf::Struct;
using List = google::protobuf::ListValue;

void set(Json& json, const char* name, const std::string& value) {
  (*json.mutable_fields())[name].set_string_value(printable(value));
}
void set(Json& json, const char* name, double value) {
  (*json.mutable_fields())[name].set_number_value(value);
}
void set_flag(Json& json, const char* name, bool value) {
  (*json.mutable_fields())[name].set_bool_value(value);
}
List& list(Json& json, const char* name) { return *(*json.mutable_fields())[name].mutable_list_value(); }
Json& object(Json& json, const char* name) { return *(*json.mutable_fields())[name].mutable_struct_value(); }
Json& add(List& list) { return *list.add_values()->mutable_struct_value(); }

std::string hex(uint64_t incarnation) { return absl::StrFormat("%016x", incarnation); }
double seconds(int64_t us) { return static_cast<double>(us) / 1e6; }
// Null for -1.
void set_seconds(Json& json, const char* name, int64_t us) {
  if (us < 0) {
    (*json.mutable_fields())[name].set_null_value(google::protobuf::NULL_VALUE);
  } else {
    set(json, name, seconds(us));
  }
}

std::string name_of(const JobView& job, uint64_t incarnation) {
  const WorkerView* worker = job.find(incarnation);
  return worker == nullptr ? hex(incarnation) : worker->record.name();
}

std::string call_id(uint64_t caller, uint64_t number) { return absl::StrCat(hex(caller), "/", number); }

void write_calls(const JobView& job, const google::protobuf::RepeatedPtrField<proto::CallSummary>& calls,
                 List& out) {
  for (const proto::CallSummary& call : calls) {
    Json& json = add(out);
    set(json, "call", call_id(call.identity().caller(), call.identity().call_id()));
    set(json, "callee", call.callee());
    set(json, "peer", name_of(job, call.peer()));
    set_seconds(json, "age_s", call.age_us());
    set_seconds(json, "left_s", call.left_us());
    set(json, "stage", proto::CallSummary::Stage_Name(call.stage()));
    if (call.parent().kind() == proto::CallOrigin::TRACE) {
      set(json, "trace_id", absl::StrCat(hex(call.parent().incarnation()), hex(call.parent().number())));
    } else if (call.has_parent()) {
      set(json, "parent", call_id(call.parent().incarnation(), call.parent().number()));
    }
    if (call.has_waits_for())
      set(json, "waits_for", call_id(call.waits_for().caller(), call.waits_for().call_id()));
  }
}

void write_peers(const Report& report, const WorkerView& worker, List& out) {
  for (const proto::PeerState& peer : worker.state.peers()) {
    Json& json = add(out);
    set(json, "name", peer.name());
    set(json, "state", proto::PeerState::State_Name(peer.state()));
    set_flag(json, "same_host", peer.same_host());
    const auto found = report.rates.links.find({worker.record.incarnation(), peer.incarnation()});
    if (found != report.rates.links.end()) {
      set(json, "sent_bytes_per_s", found->second.sent);
      set(json, "received_bytes_per_s", found->second.received);
    }
    for (const proto::LinkState& link : peer.links()) {
      Json& entry = add(list(json, "links"));
      set(entry, "transport", link.transport());
      set_flag(entry, "in_use", link.in_use());
      set(entry, "bytes_sent", static_cast<double>(link.bytes_sent()));
      set(entry, "bytes_received", static_cast<double>(link.bytes_received()));
      set(entry, "queued_bytes", static_cast<double>(link.queued_bytes()));
      set(entry, "no_room_bytes", static_cast<double>(link.no_room_bytes()));
    }
    for (const proto::GivenUpTransport& given_up : peer.given_up()) {
      set(object(json, "given_up"), printable(given_up.transport()).c_str(), given_up.reason());
    }
    Json& window = object(json, "window");
    set(window, "calls", static_cast<double>(peer.window_calls()));
    set(window, "calls_limit", static_cast<double>(peer.window_calls_limit()));
    set(window, "bytes", static_cast<double>(peer.window_bytes()));
    set(window, "bytes_limit", static_cast<double>(peer.window_bytes_limit()));
    set(window, "waiting", static_cast<double>(peer.window_waiting()));
    set(window, "waited", static_cast<double>(peer.window_waits()));
  }
}

void write_numbers(const google::protobuf::RepeatedPtrField<proto::NamedNumber>& numbers, Json& out) {
  for (const proto::NamedNumber& number : numbers) {
    set(out, printable(number.name()).c_str(), static_cast<double>(number.value()));
  }
}

void write_collective(const proto::CollectiveState& state, Json& out) {
  set(out, "operation", state.operation());
  set(out, "sequence", static_cast<double>(state.sequence()));
  set(out, "state", proto::CollectiveState::State_Name(state.state()));
  set_seconds(out, "age_s", state.age_us());
}

void write_memory(const JobView& job, const proto::AgentState& state, Json& json) {
  set(json, "rrefs_total", static_cast<double>(state.rrefs_total()));
  List& rrefs = list(json, "rrefs");
  for (const proto::RRefState& group : state.rrefs()) {
    Json& entry = add(rrefs);
    set(entry, "type", group.type());
    set(entry, "holder", group.holder() == 0 ? "" : name_of(job, group.holder()));
    set(entry, "count", static_cast<double>(group.count()));
    set_seconds(entry, "oldest_s", group.oldest_us());
    set_flag(entry, "holder_lost", group.holder_lost());
  }
  write_numbers(state.tables(), object(json, "tables"));
  write_numbers(state.statistics(), object(json, "statistics"));
}

void write_store(const proto::StoreState& store, Json& json) {
  set(json, "description", store.description());
  set(json, "calls", static_cast<double>(store.calls()));
  set_seconds(json, "mean_s", store.mean_us());
  set_seconds(json, "slowest_s", store.slowest_us());
  set(json, "slowest_operation", store.slowest_operation());
  set_seconds(json, "open_s", store.open_us());
  set(json, "open_operation", store.open_operation());
}

void write_layers(const JobView& job, const proto::AgentState& state, Json& json) {
  set(json, "contexts_total", static_cast<double>(state.autograd().contexts_total()));
  List& passes = list(json, "passes");
  for (const proto::PassSummary& pass : state.autograd().passes()) {
    Json& entry = add(passes);
    set(entry, "pass", call_id(pass.root(), pass.number()));
    set(entry, "root", name_of(job, pass.root()));
    set_seconds(entry, "age_s", pass.age_us());
    set_seconds(entry, "left_s", pass.left_us());
    set_flag(entry, "running", pass.running());
    set_flag(entry, "fast", pass.fast());
    for (const uint64_t other : pass.waits_for()) {
      list(entry, "waits_for").add_values()->set_string_value(printable(name_of(job, other)));
    }
  }
  List& groups = list(json, "groups");
  for (const proto::ProcessGroupState& group : state.groups()) {
    Json& entry = add(groups);
    set(entry, "title", group.title());
    set(entry, "recorded", static_cast<double>(group.recorded()));
    if (group.has_last()) write_collective(group.last(), object(entry, "last"));
    if (group.has_oldest()) write_collective(group.oldest(), object(entry, "oldest_open"));
  }
}

void write_worker(const Report& report, const WorkerView& worker, Json& json) {
  constexpr const char* kStandings[] = {"member", "dead", "left"};
  const proto::AgentState& state = worker.state;
  set(json, "name", worker.record.name());
  set(json, "id", static_cast<double>(worker.record.id()));
  set(json, "incarnation", hex(worker.record.incarnation()));
  set(json, "standing", kStandings[static_cast<int>(worker.standing)]);
  set_flag(json, "answered", worker.answered());
  if (!worker.status.ok()) set(json, "error", std::string(worker.status.message()));
  if (!worker.reason.empty()) set(json, "reason", worker.reason);
  if (!worker.answered()) return;
  set(json, "pid", static_cast<double>(state.pid()));
  set(json, "host", state.host());
  set(json, "members", state.members());
  set(json, "uptime_s", seconds(state.uptime_us()));
  set(json, "pending_total", static_cast<double>(state.pending_total()));
  set(json, "served_total", static_cast<double>(state.served_total()));
  write_calls(report.job, state.pending(), list(json, "pending"));
  write_calls(report.job, state.served(), list(json, "served"));
  List& functions = list(json, "functions");
  for (const proto::FunctionState& function : state.functions()) {
    Json& entry = add(functions);
    set(entry, "callee", function.callee());
    set(entry, "pending", static_cast<double>(function.pending()));
    set(entry, "served", static_cast<double>(function.served()));
    set_seconds(entry, "oldest_s", function.oldest_us());
  }
  write_peers(report, worker, list(json, "peers"));
  if (state.has_store()) write_store(state.store(), object(json, "store"));
  write_memory(report.job, state, json);
  write_layers(report.job, state, json);
}

}  // namespace

std::string json_report(const Report& report, bool for_people) {
  Json json;
  set(json, "group", report.job.group);
  set(json, "time", absl::FormatTime(absl::RFC3339_full, report.job.time, absl::UTCTimeZone()));
  List& workers = list(json, "workers");
  for (const WorkerView& worker : report.job.workers) write_worker(report, worker, add(workers));
  List& findings = list(json, "findings");
  for (const Finding& finding : report.findings) {
    Json& entry = add(findings);
    set(entry, "kind", std::string(name_of(finding.kind)));
    set(entry, "title", finding.title);
    set(entry, "advice", finding.advice);
    set(entry, "age_s", absl::ToDoubleSeconds(finding.age));
    List& culprits = list(entry, "culprits");
    for (const uint64_t culprit : finding.culprits) {
      culprits.add_values()->set_string_value(printable(name_of(report.job, culprit)));
    }
    List& details = list(entry, "details");
    for (const std::string& detail : finding.details) details.add_values()->set_string_value(detail);
  }
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = for_people;
  options.always_print_primitive_fields = true;
  std::string out;
  // Fails only for numbers that are not finite, of which there are none.
  if (!google::protobuf::util::MessageToJsonString(json, &out, options).ok()) return "{}\n";
  return out;
}

}  // namespace gradwire::inspect
