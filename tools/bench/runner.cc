#include "gradwire/tools/bench/runner.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/tools/bench/run/split_network.h"
#include "gradwire/tools/bench/suites/case_name.h"

namespace gradwire::bench {
namespace {

constexpr int kDepths[] = {1, 2, 4, 8, 16, 32, 64, 128, 256};
constexpr int kFreshRounds = 3;
constexpr int kMaxFailures = 3;
// The usual soft limit of open descriptors in a process.
constexpr int kUsualDescriptors = 1024;
// A worker detects a cut link only by a timeout, so a round takes long. More rounds would show the same
// timeout.
constexpr int kCutRounds = 1;
constexpr absl::Duration kCutTimeout = absl::Seconds(120);

bool selected(const std::vector<std::string>& list, const std::string& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

// Whether the case needs new processes that no other case uses.
bool needs_fresh_system(const CaseSpec& spec) {
  switch (spec.kind) {
    case CaseKind::kLatency:
    case CaseKind::kTraining:
      return spec.members > 2;
    case CaseKind::kTogether:
    case CaseKind::kInFlight:
    case CaseKind::kStream:
    case CaseKind::kIdle:
      return false;
    case CaseKind::kCadence:
    case CaseKind::kOversubscribed:
    case CaseKind::kQueued:
    case CaseKind::kTrainStep:
    case CaseKind::kClients:
    case CaseKind::kFirstContact:
    case CaseKind::kKilledPeer:
    case CaseKind::kCutLink:
      return true;
  }
  return true;
}

// Whether a round of the case makes its processes unusable, so that each round needs new ones.
bool happens_once(const CaseSpec& spec) {
  return spec.kind == CaseKind::kFirstContact || spec.kind == CaseKind::kKilledPeer ||
         spec.kind == CaseKind::kCutLink;
}

void drop_figure(std::vector<Figure>& figures, absl::string_view metric) {
  figures.erase(std::remove_if(figures.begin(), figures.end(),
                               [&](const Figure& figure) { return figure.metric == metric; }),
                figures.end());
}

int rounds_of(const CaseSpec& spec, int rounds) {
  if (spec.kind == CaseKind::kCutLink) return std::min(kCutRounds, rounds);
  return spec.kind == CaseKind::kFirstContact ? std::min(kFreshRounds, rounds) : rounds;
}

}  // namespace

Runner::Runner(BenchOptions options, std::function<void(const Row&)> on_row,
               std::function<void(const std::string&)> on_progress)
    : options_(std::move(options)), on_row_(std::move(on_row)), on_progress_(std::move(on_progress)) {}

Report Runner::run() {
  for (const std::string& suite : options_.suites) {
    for (const std::string& transport : transports_of(suite)) {
      const bool choice = transport != "store" && transport != "host";
      if (!choice || options_.transports.empty() || selected(options_.transports, transport)) {
        run_suite(suite, transport);
      }
    }
  }
  return std::move(report_);
}

void Runner::run_suite(const std::string& suite, const std::string& transport) {
  std::vector<Entry> entries;
  for (const RoleSpec& role : roles()) {
    const bool is_gradwire = role.name == "gradwire";
    const bool floor = !is_gradwire && role.peer_flag.empty();
    if (role.suite != suite || !selected(role.transports, transport)) continue;
    if (is_gradwire || (floor ? options_.floors : selected(options_.peers, role.peer_flag))) {
      entries.push_back({.role = &role});
    }
  }
  for (const CaseSpec& spec : options_.cases) {
    if (spec.suite != suite || (!spec.transport.empty() && spec.transport != transport)) continue;
    on_progress_(absl::StrCat(suite, " over ", transport, ": ", spec.name));
    run_case(spec, transport, entries);
    if (entries.front().failures >= kMaxFailures) return;
  }
}

void Runner::run_case(const CaseSpec& spec, const std::string& transport, std::vector<Entry>& entries) {
  std::vector<Entry*> systems;
  for (Entry& entry : entries) {
    // The case runs in a new group, or in a group of the same size that an earlier case has left.
    const bool other_size = spec.kind == CaseKind::kTogether && entry.members != spec.members;
    if (needs_fresh_system(spec) || other_size) entry.system.reset();
    entry.members = spec.members;
    entry.failed = false;
    if (entry.failures < kMaxFailures && supports(*entry.role, spec)) systems.push_back(&entry);
  }
  if (spec.kind == CaseKind::kInFlight) {
    in_flight(spec, transport, systems);
  } else {
    add_rows(spec, transport, rounds(spec, transport, systems));
  }
  if (needs_fresh_system(spec)) {
    for (Entry& entry : entries) entry.system.reset();
  }
}

absl::StatusOr<Round> Runner::one_round(const CaseSpec& spec, const std::string& transport, Entry& entry,
                                        int depth, double seconds) {
  if (entry.system == nullptr) {
    System::Options options{.role = entry.role->role,
                            .transport = transport,
                            .members = entry.role->members,
                            .stop_between = entry.role->spins};
    const bool as_many = needs_fresh_system(spec) || spec.kind == CaseKind::kTogether;
    if (as_many && !entry.role->starts_members) options.members = spec.members;
    if (spec.kind == CaseKind::kOversubscribed || spec.kind == CaseKind::kCadence) options.cores = 2;
    if (spec.kind == CaseKind::kFirstContact) options.descriptors = kUsualDescriptors;
    if (spec.kind == CaseKind::kCutLink) {
      auto network = SplitNetwork::make();
      if (!network.ok()) return network.status();
      options.network = *std::move(network);
      options.timeout = kCutTimeout;
    }
    auto system = System::start(options);
    if (!system.ok()) {
      // A system that cannot start this many processes may still run other cases.
      if (!needs_fresh_system(spec)) entry.failures = kMaxFailures;
      return system.status();
    }
    entry.system = *std::move(system);
  }
  if (spec.kind == CaseKind::kIdle) {
    const absl::Duration period = absl::Seconds(std::max(0.5, seconds));
    const auto cpu_us = entry.system->idle_cpu_us(period);
    if (!cpu_us.ok()) return cpu_us.status();
    return Round{.members = {{.calls = 1, .seconds = absl::ToDoubleSeconds(period)}}, .cpu_us = *cpu_us};
  }
  const Task task{.case_name = spec.name, .seconds = seconds, .depth = depth};
  const bool loss = spec.kind == CaseKind::kKilledPeer || spec.kind == CaseKind::kCutLink;
  auto round = loss ? entry.system->run_last_task(task) : entry.system->run(task, spec.callers);
  if (round.ok() && spec.kind == CaseKind::kFirstContact)
    round = add_footprint(*std::move(round), *entry.system);
  if (round.ok() && spec.kind == CaseKind::kClients) {
    auto server = entry.system->run({.case_name = kFootprintCase, .seconds = 0}, 0);
    if (!server.ok()) return server.status();
    round->members[0].figures = std::move(server->members[0].figures);
  }
  if (round.ok() && spec.kind == CaseKind::kTraining)
    round = add_extra_figures(*std::move(round), task, *entry.system);
  if (happens_once(spec)) entry.system.reset();
  return round;
}

absl::StatusOr<Round> Runner::add_extra_figures(Round round, Task task, System& system) {
  // Run separately, so that its processor time is not added to that of the timed calls.
  task.extra_figures = true;
  auto extra = system.run(task);
  if (!extra.ok()) return extra.status();
  round.members[0].figures = std::move(extra->members[0].figures);
  return round;
}

absl::StatusOr<Round> Runner::add_footprint(Round round, System& system) {
  // Wait until resources that are needed only for the first contact have been released.
  absl::SleepFor(absl::Milliseconds(300));
  auto idle = system.run({.case_name = kFootprintCase, .seconds = 0}, 0);
  if (!idle.ok()) return idle.status();
  for (std::size_t i = 0; i < round.members.size(); ++i) {
    round.members[i].figures = std::move(idle->members[i].figures);
  }
  return round;
}

std::vector<Runner::Result> Runner::rounds(const CaseSpec& spec, const std::string& transport,
                                           std::vector<Entry*>& systems) {
  const int count = rounds_of(spec, options_.rounds);
  const double seconds = options_.seconds * spec.weight / options_.rounds;
  std::vector<std::vector<Round>> all(systems.size());
  for (int n = 0; n < count; ++n) {
    for (std::size_t i = 0; i < systems.size(); ++i) {
      if (systems[i]->failed) continue;
      auto round = one_round(spec, transport, *systems[i], 1, seconds);
      if (round.ok()) {
        all[i].push_back(*std::move(round));
      } else {
        give_up(*systems[i], spec, round.status());
        if (i == 0) return {};
      }
    }
  }
  std::vector<Result> results;
  for (std::size_t i = 0; i < systems.size(); ++i) {
    if (systems[i]->failed) continue;
    Result result{.name = systems[i]->role->name};
    switch (spec.kind) {
      case CaseKind::kIdle: {
        std::vector<double> percents;
        for (const Round& round : all[i]) {
          percents.push_back(round.cpu_us / round.members[0].seconds / 1e4 / systems[i]->role->members);
        }
        result.figures = {median_figure("cpu_percent", std::move(percents))};
        break;
      }
      case CaseKind::kFirstContact:
        result.figures = {span_figure(all[i])};
        add_point(spec.plot, transport, result.name, spec.members, result.figures[0].value);
        for (Figure& own : own_figures(all[i])) result.figures.push_back(std::move(own));
        break;
      case CaseKind::kKilledPeer:
      case CaseKind::kCutLink:
        result.figures = own_figures(all[i]);
        break;
      case CaseKind::kTrainStep:
        result.figures = rate_figures(all[i]);
        if (!result.figures.empty()) result.figures[0].metric = "steps_per_s";
        break;
      case CaseKind::kStream:
        result.figures = rate_figures(all[i]);
        if (!result.figures.empty()) result.figures[0].metric = "items_per_s";
        break;
      case CaseKind::kOversubscribed:
        result.figures = rate_figures(all[i]);
        for (Figure& f : latency_figures(all[i], 0)) {
          if (f.metric != "cpu_us_per_call") result.figures.push_back(std::move(f));
        }
        break;
      case CaseKind::kCadence:
      case CaseKind::kClients:
      case CaseKind::kInFlight:
      case CaseKind::kQueued:
      case CaseKind::kLatency:
      case CaseKind::kTogether:
      case CaseKind::kTraining: {
        result.figures = latency_figures(all[i], spec.bytes_per_call);
        const double p50 = figure(result.figures, "p50_us");
        const double p99 = figure(result.figures, "p99_us");
        // With more processes than cores the tail depends on the scheduler.
        const bool crowded = spec.kind == CaseKind::kCadence && spec.members > 2;
        const bool tail = (spec.suite == "rpc" && !crowded) || spec.kind == CaseKind::kClients;
        if (i == 0 && p50 > 0 && p99 > 0 && tail) result.figures.push_back({"p99_over_p50", p99 / p50});
        // The processor time is meaningless in this case: it contains the spinning in the barriers, and Open
        // MPI's ranks are not child processes of the bench.
        if (spec.kind == CaseKind::kTogether) drop_figure(result.figures, "cpu_us_per_call");
        if (!spec.plot.empty()) {
          // add2 has no size in its name; it moves eight bytes each way.
          const double bytes = static_cast<double>(std::max<int64_t>(8, parse_case(spec.name).bytes));
          add_point(spec.plot, transport, result.name, bytes, p50);
        }
        for (Figure& own : own_figures(all[i])) result.figures.push_back(std::move(own));
        break;
      }
    }
    results.push_back(std::move(result));
  }
  return results;
}

void Runner::in_flight(const CaseSpec& spec, const std::string& transport, std::vector<Entry*>& systems) {
  std::vector<Result> best(systems.size());
  const double seconds = std::max(0.1, options_.seconds * spec.weight / options_.rounds / 2);
  for (const int depth : kDepths) {
    std::vector<std::vector<Round>> all(systems.size());
    for (int n = 0; n < options_.rounds; ++n) {
      for (std::size_t i = 0; i < systems.size(); ++i) {
        if (systems[i]->failed) continue;
        auto round = one_round(spec, transport, *systems[i], depth, seconds);
        if (round.ok()) {
          all[i].push_back(*std::move(round));
        } else {
          give_up(*systems[i], spec, round.status());
          if (i == 0) return;
        }
      }
    }
    for (std::size_t i = 0; i < systems.size(); ++i) {
      if (systems[i]->failed) continue;
      std::vector<Figure> figures = rate_figures(all[i]);
      const double rate = figure(figures, "calls_per_s");
      add_point(spec.plot, transport, systems[i]->role->name, depth, rate);
      // Compare each system at its own best depth.
      if (rate > figure(best[i].figures, "calls_per_s"))
        best[i] = {systems[i]->role->name, std::move(figures)};
    }
  }
  std::vector<Result> results;
  for (std::size_t i = 0; i < systems.size(); ++i) {
    if (!systems[i]->failed) results.push_back(std::move(best[i]));
  }
  add_rows(spec, transport, results);
}

void Runner::add_rows(const CaseSpec& spec, const std::string& transport,
                      const std::vector<Result>& results) {
  if (results.empty()) return;
  for (const Figure& ours : results[0].figures) {
    bool compared = false;
    Row row{.suite = spec.suite,
            .case_name = spec.name,
            .transport = transport,
            .metric = ours.metric,
            .gradwire = ours.value,
            .rounds = ours.rounds};
    for (std::size_t i = 1; i < results.size(); ++i) {
      const double theirs = figure(results[i].figures, ours.metric);
      // A floor is a lower bound of the median and an upper bound of the bandwidth. Its other figures mean
      // nothing.
      const bool floor = results[i].name.rfind("floor_", 0) == 0;
      if (theirs <= 0 || (floor && ours.metric != "p50_us" && ours.metric != "GB_per_s")) continue;
      compared = true;
      row.peer = results[i].name;
      row.peer_value = theirs;
      row.ratio = improvement(ours.metric, ours.value, theirs);
      report_.rows.push_back(row);
      on_row_(row);
    }
    if (!compared) {
      report_.rows.push_back(row);
      on_row_(row);
    }
  }
  // The ways in which floor_wake was measured are compared with Gradwire's median.
  const double ours = figure(results[0].figures, "p50_us");
  for (const Result& result : results) {
    for (const Figure& theirs : result.figures) {
      if (theirs.metric.rfind("wake_", 0) != 0) continue;
      report_.rows.push_back({spec.suite, spec.name, transport, theirs.metric, ours, result.name,
                              theirs.value, improvement(theirs.metric, ours, theirs.value)});
      on_row_(report_.rows.back());
    }
  }
}

void Runner::add_point(const std::string& plot, const std::string& transport, const std::string& system,
                       double x, double y) {
  for (Curve& curve : report_.curves) {
    if (curve.plot == plot && curve.transport == transport && curve.system == system) {
      curve.points.emplace_back(x, y);
      return;
    }
  }
  report_.curves.push_back({plot, transport, system, {{x, y}}});
}

void Runner::give_up(Entry& entry, const CaseSpec& spec, const absl::Status& status) {
  entry.failed = true;
  ++entry.failures;
  entry.system.reset();
  report_.skipped.push_back(
      absl::StrCat(spec.suite, " ", spec.name, ": ", entry.role->name, ": ", status.message()));
}

}  // namespace gradwire::bench
