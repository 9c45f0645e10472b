#include "gradwire/tools/inspect/view/tables.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "gradwire/tools/inspect/analysis/text.h"

namespace gradwire::inspect {
namespace {

using Cell = Table::Cell;

Cell text(absl::string_view value) { return {printable(value), 0}; }
Cell number(double value) {
  return {value < 10 && value != static_cast<double>(static_cast<int64_t>(value))
              ? absl::StrFormat("%.1f", value)
              : absl::StrFormat("%.0f", value),
          value};
}
template <class T>
Cell count(T value) {
  return {absl::StrCat(value), static_cast<double>(value)};
}
Cell bytes(double value) { return {bytes_text(value), value}; }
Cell rate(double value) { return {bytes_text(value) + "/s", value}; }
Cell age(int64_t us) {
  if (us < 0) return {"-", -1};
  return {text_of(absl::Microseconds(us)), static_cast<double>(us)};
}
Cell left(int64_t us) {
  if (us < 0) return {"-", 1e18};
  return {text_of(absl::Microseconds(us)), static_cast<double>(us)};
}

const char* standing_of(const WorkerView& worker) {
  if (worker.standing == WorkerView::Standing::kDead) return "dead";
  if (worker.standing == WorkerView::Standing::kLeft) return "left";
  return worker.status.ok() ? "alive" : "no answer";
}

// The name of a worker without quotes.
Cell name_cell(const JobView& job, uint64_t incarnation) {
  const WorkerView* worker = job.find(incarnation);
  return text(worker == nullptr ? "?" : worker->record.name());
}

double per_second(const std::map<uint64_t, double>& rates, uint64_t worker) {
  const auto found = rates.find(worker);
  return found == rates.end() ? 0 : found->second;
}

std::string stage_of(const proto::CallSummary& call) {
  constexpr const char* kNames[] = {"no credit",  "copying", "sent",    "retry",  "no object",
                                    "no context", "queued",  "running", "nested", "answering"};
  const int stage = call.stage();
  return call.has_waits_for() ? "no turn" : stage >= 0 && stage < 10 ? kNames[stage] : "?";
}

void add_note(uint64_t total, std::size_t shown, Table& table) {
  if (total > shown) table.note = absl::StrCat("and ", total - shown, " more");
}

const char* maker_of(proto::CallOrigin::Kind kind) {
  switch (kind) {
    case proto::CallOrigin::CALL:
      return "a handler";
    case proto::CallOrigin::PASS:
      return "a backward pass";
    case proto::CallOrigin::TRACE:
      return "a traced request";
    default:
      return "the program";
  }
}

}  // namespace

Table workers_table(const JobView& job, const Rates& rates) {
  Table table{"Workers",
              {{"worker"},
               {"id", true},
               {"state"},
               {"host"},
               {"pid", true},
               {"up", true},
               {"calls out", true},
               {"calls in", true},
               {"made/s", true},
               {"served/s", true},
               {"sent", true},
               {"received", true},
               {"RRefs", true},
               {"memory", true}}};
  for (const WorkerView& worker : job.workers) {
    const proto::AgentState& state = worker.state;
    const uint64_t self = worker.record.incarnation();
    Table::Row row{{text(worker.record.name()), count(worker.record.id()), text(standing_of(worker))}, self};
    if (worker.answered()) {
      Rates::Traffic traffic;
      for (const auto& [link, each] : rates.links) {
        if (link.first != self) continue;
        traffic.sent += each.sent;
        traffic.received += each.received;
      }
      row.cells.insert(
          row.cells.end(),
          {text(state.host()), count(state.pid()), age(state.uptime_us()), count(state.pending_total()),
           count(state.served_total()), number(per_second(rates.calls_made, self)),
           number(per_second(rates.calls_served, self)), rate(traffic.sent), rate(traffic.received),
           count(state.rrefs_total()),
           bytes(static_cast<double>(number_of(state.statistics(), "resident_bytes")))});
    }
    row.cells.resize(table.columns.size(), {"-", -1});
    table.rows.push_back(std::move(row));
  }
  return table;
}

Table links_table(const JobView& job, const Rates& rates) {
  Table table{"Connections",
              {{"worker"},
               {"peer"},
               {"state"},
               {"transport"},
               {"sent/s", true},
               {"received/s", true},
               {"sent", true},
               {"received", true},
               {"queued", true},
               {"window", true},
               {"waiting", true},
               {"waited", true}}};
  for (const WorkerView& worker : job.workers) {
    if (!worker.answered()) continue;
    const uint64_t self = worker.record.incarnation();
    for (const proto::PeerState& peer : worker.state.peers()) {
      constexpr const char* kStates[] = {"alive", "suspect", "dead", "left"};
      double sent = 0, received = 0, queued = 0;
      std::string transport = "-";
      for (const proto::LinkState& link : peer.links()) {
        sent += static_cast<double>(link.bytes_sent());
        received += static_cast<double>(link.bytes_received());
        queued += static_cast<double>(link.queued_bytes());
        if (link.in_use() || transport == "-") transport = link.transport();
      }
      // Nothing has happened between the two.
      if (peer.links().empty() && peer.state() == proto::PeerState::ALIVE && peer.window_calls() == 0)
        continue;
      const auto found = rates.links.find({self, peer.incarnation()});
      const Rates::Traffic traffic = found == rates.links.end() ? Rates::Traffic() : found->second;
      table.rows.push_back({{text(worker.record.name()),
                             text(peer.name()),
                             text(kStates[std::clamp<int>(peer.state(), 0, 3)]),
                             text(transport),
                             rate(traffic.sent),
                             rate(traffic.received),
                             bytes(sent),
                             bytes(received),
                             bytes(queued),
                             {absl::StrCat(peer.window_calls(), "/", peer.window_calls_limit()),
                              static_cast<double>(peer.window_calls())},
                             count(peer.window_waiting()),
                             count(peer.window_waits())},
                            self});
    }
  }
  return table;
}

Table calls_table(const JobView& job) {
  Table table{"Calls in progress",
              {{"age", true}, {"left", true}, {"callee"}, {"caller"}, {"at"}, {"stage"}, {"made by"}}};
  uint64_t total = 0;
  for (const WorkerView& worker : job.workers) {
    if (!worker.answered()) continue;
    const uint64_t self = worker.record.incarnation();
    total += worker.state.pending_total() + worker.state.served_total();
    for (const proto::CallSummary& call : worker.state.pending()) {
      const char* const maker = maker_of(call.parent().kind());
      table.rows.push_back(
          {{age(call.age_us()), left(call.left_us()), text(call.callee()), text(worker.record.name()),
            name_cell(job, call.peer()), text(stage_of(call)), text(maker)},
           self});
    }
    for (const proto::CallSummary& call : worker.state.served()) {
      const std::string waits =
          call.has_waits_for() ? absl::StrCat("waits for ", call.waits_for_callee()) : std::string();
      table.rows.push_back(
          {{age(call.age_us()), left(call.left_us()), text(call.callee()), name_cell(job, call.peer()),
            text(worker.record.name()), text(stage_of(call)), text(waits)},
           self});
    }
  }
  sort_rows(table, 0, false);
  add_note(total, table.rows.size(), table);
  return table;
}

Table functions_table(const JobView& job) {
  Table table{"Functions",
              {{"callee"}, {"in progress", true}, {"waiting callers", true}, {"oldest", true}, {"at"}}};
  struct Total {
    uint64_t served = 0, pending = 0;
    int64_t oldest = 0;
    std::vector<std::string> workers;
    uint64_t first = 0;
  };
  std::map<std::string, Total> totals;
  for (const WorkerView& worker : job.workers) {
    if (!worker.answered()) continue;
    for (const proto::FunctionState& function : worker.state.functions()) {
      Total& total = totals[function.callee()];
      total.served += function.served();
      total.pending += function.pending();
      total.oldest = std::max(total.oldest, function.oldest_us());
      if (function.served() == 0) continue;
      total.workers.push_back(worker.record.name());
      total.first = worker.record.incarnation();
    }
  }
  for (const auto& [callee, total] : totals) {
    table.rows.push_back({{text(callee), count(total.served), count(total.pending), age(total.oldest),
                           text(absl::StrJoin(total.workers, ", "))},
                          total.first});
  }
  sort_rows(table, 1, false);
  return table;
}

Table rrefs_table(const JobView& job) {
  Table table{"RRefs", {{"owner"}, {"type"}, {"holder"}, {"count", true}, {"oldest", true}, {"holder is"}}};
  for (const WorkerView& worker : job.workers) {
    if (!worker.answered()) continue;
    for (const proto::RRefState& group : worker.state.rrefs()) {
      table.rows.push_back(
          {{text(worker.record.name()), text(group.type().empty() ? "(not made yet)" : group.type()),
            group.holder() == 0 ? text("(own process)") : name_cell(job, group.holder()),
            count(group.count()), age(group.oldest_us()), text(group.holder_lost() ? "lost" : "alive")},
           worker.record.incarnation()});
    }
  }
  sort_rows(table, 3, false);
  return table;
}

Table passes_table(const JobView& job) {
  Table table{
      "Backward passes",
      {{"worker"}, {"root"}, {"age", true}, {"left", true}, {"stage"}, {"expected", true}, {"waits for"}}};
  for (const WorkerView& worker : job.workers) {
    if (!worker.answered()) continue;
    for (const proto::PassSummary& pass : worker.state.autograd().passes()) {
      std::vector<std::string> waits;
      for (const uint64_t other : pass.waits_for()) waits.push_back(name_cell(job, other).text);
      table.rows.push_back({{text(worker.record.name()),
                             name_cell(job, pass.root()),
                             age(pass.age_us()),
                             left(pass.left_us()),
                             text(pass.running() ? "running" : "marking"),
                             count(pass.remaining()),
                             {absl::StrJoin(waits, ", "), 0}},
                            worker.record.incarnation()});
    }
  }
  sort_rows(table, 2, false);
  return table;
}

Table groups_table(const JobView& job) {
  Table table{"Process groups",
              {{"worker"},
               {"group"},
               {"operations", true},
               {"last"},
               {"#", true},
               {"state"},
               {"called", true},
               {"oldest open"}}};
  for (const WorkerView& worker : job.workers) {
    if (!worker.answered()) continue;
    for (const proto::ProcessGroupState& group : worker.state.groups()) {
      constexpr const char* kStates[] = {"queued", "running", "done", "failed"};
      const proto::CollectiveState& last = group.last();
      Table::Row row{{text(worker.record.name()), text(group.title()), count(group.recorded())},
                     worker.record.incarnation()};
      if (group.has_last()) {
        row.cells.insert(row.cells.end(),
                         {text(last.operation()), count(last.sequence()),
                          text(kStates[std::clamp<int>(last.state(), 0, 3)]), age(last.age_us())});
      }
      row.cells.resize(7, {"-", -1});
      row.cells.push_back(group.has_oldest()
                              ? text(absl::StrCat(group.oldest().operation(), " #", group.oldest().sequence(),
                                                  ", ", text_of(absl::Microseconds(group.oldest().age_us()))))
                              : text("-"));
      table.rows.push_back(std::move(row));
    }
  }
  return table;
}

Table findings_table(const std::vector<Finding>& findings) {
  Table table{"Findings", {{"problem"}}};
  for (const Finding& finding : findings) {
    const uint64_t culprit = finding.culprits.empty() ? 0 : finding.culprits.front();
    table.rows.push_back({{{finding.title, 0}}, culprit});
    for (const std::string& detail : finding.details) table.rows.push_back({{{"    " + detail, 0}}, culprit});
    if (!finding.advice.empty()) table.rows.push_back({{{"    what to do: " + finding.advice, 0}}, culprit});
  }
  return table;
}

}  // namespace gradwire::inspect
