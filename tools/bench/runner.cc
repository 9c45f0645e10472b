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
constexpr int kMostFailures = 3;
// What a process gets where nobody has raised the limit.
constexpr int kUsualDescriptors = 1024;
// A cut link shows by silence, so a round takes long; and silence has no tail.
constexpr int kCutRounds = 1;
constexpr absl::Duration kCutTimeout = absl::Seconds(120);

bool selected(const std::vector<std::string>& list, const std::string& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

// Cases whose processes serve no other one.
bool needs_fresh_side(const CaseSpec& spec) {
  switch (spec.kind) {
    case CaseKind::kLatency:
    case CaseKind::kTraining:
      return spec.members > 2;
    case CaseKind::kTogether:
    case CaseKind::kInFlight:
    case CaseKind::kIdle:
      return false;
    case CaseKind::kOversubscribed:
    case CaseKind::kQueued:
    case CaseKind::kFirstContact:
    case CaseKind::kKilledPeer:
    case CaseKind::kCutLink:
      return true;
  }
  return true;
}

// Cases that use their processes up: each round has others.
bool happens_once(const CaseSpec& spec) {
  return spec.kind == CaseKind::kFirstContact || spec.kind == CaseKind::kKilledPeer ||
         spec.kind == CaseKind::kCutLink;
}

bool all_members_run(const CaseSpec& spec) {
  return spec.kind == CaseKind::kFirstContact || spec.kind == CaseKind::kOversubscribed ||
         spec.kind == CaseKind::kTogether;
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
      const bool choice = transport == "shm" || transport == "tcp";
      if (!choice || options_.transports.empty() || selected(options_.transports, transport)) {
        run_suite(suite, transport);
      }
    }
  }
  return std::move(report_);
}

void Runner::run_suite(const std::string& suite, const std::string& transport) {
  std::vector<Contender> contenders;
  for (const RoleSpec& role : roles()) {
    const bool ourselves = role.name == "gradwire";
    const bool floor = !ourselves && role.peer_flag.empty();
    if (role.suite != suite || !selected(role.transports, transport)) continue;
    if (ourselves || (floor ? options_.floors : selected(options_.peers, role.peer_flag))) {
      contenders.push_back({.role = &role});
    }
  }
  for (const CaseSpec& spec : options_.cases) {
    if (spec.suite != suite || (!spec.transport.empty() && spec.transport != transport)) continue;
    on_progress_(absl::StrCat(suite, " over ", transport, ": ", spec.name));
    run_case(spec, transport, contenders);
    if (contenders.front().failures >= kMostFailures) return;
  }
}

void Runner::run_case(const CaseSpec& spec, const std::string& transport,
                      std::vector<Contender>& contenders) {
  std::vector<Contender*> sides;
  for (Contender& contender : contenders) {
    // In a group of its own, or in one of the same size that the cases before have left.
    const bool other_size = spec.kind == CaseKind::kTogether && contender.members != spec.members;
    if (needs_fresh_side(spec) || other_size) contender.side.reset();
    contender.members = spec.members;
    contender.failed = false;
    if (contender.failures < kMostFailures && knows(*contender.role, spec)) sides.push_back(&contender);
  }
  if (spec.kind == CaseKind::kInFlight) {
    in_flight(spec, transport, sides);
  } else {
    add_rows(spec, transport, rounds(spec, transport, sides));
  }
  if (needs_fresh_side(spec)) {
    for (Contender& contender : contenders) contender.side.reset();
  }
}

absl::StatusOr<Round> Runner::one_round(const CaseSpec& spec, const std::string& transport,
                                        Contender& contender, int depth, double seconds) {
  if (contender.side == nullptr) {
    Side::Options options{.role = contender.role->role,
                          .transport = transport,
                          .members = contender.role->members,
                          .stop_between = contender.role->spins};
    const bool as_many = needs_fresh_side(spec) || spec.kind == CaseKind::kTogether;
    if (as_many && !contender.role->starts_members) options.members = spec.members;
    if (spec.kind == CaseKind::kOversubscribed) options.cores = 2;
    if (spec.kind == CaseKind::kFirstContact) options.descriptors = kUsualDescriptors;
    if (spec.kind == CaseKind::kCutLink) {
      auto network = SplitNetwork::make();
      if (!network.ok()) return network.status();
      options.network = *std::move(network);
      options.timeout = kCutTimeout;
    }
    auto side = Side::start(options);
    if (!side.ok()) {
      // More processes than it can take is a matter of this case alone.
      if (!needs_fresh_side(spec)) contender.failures = kMostFailures;
      return side.status();
    }
    contender.side = *std::move(side);
  }
  if (spec.kind == CaseKind::kIdle) {
    const absl::Duration period = absl::Seconds(std::max(0.5, seconds));
    const auto cpu_us = contender.side->idle_cpu_us(period);
    if (!cpu_us.ok()) return cpu_us.status();
    return Round{.members = {{.calls = 1, .seconds = absl::ToDoubleSeconds(period)}}, .cpu_us = *cpu_us};
  }
  const Task task{.case_name = spec.name, .seconds = seconds, .depth = depth};
  const bool loss = spec.kind == CaseKind::kKilledPeer || spec.kind == CaseKind::kCutLink;
  auto round = loss ? contender.side->run_last_task(task) : contender.side->run(task, all_members_run(spec));
  if (round.ok() && spec.kind == CaseKind::kFirstContact)
    round = add_footprint(*std::move(round), *contender.side);
  if (round.ok() && spec.kind == CaseKind::kTraining)
    round = add_beside(*std::move(round), task, *contender.side);
  if (happens_once(spec)) contender.side.reset();
  return round;
}

absl::StatusOr<Round> Runner::add_beside(Round round, Task task, Side& side) {
  // By itself, so that what it takes does not count for the processor time of the calls before.
  task.beside = true;
  auto beside = side.run(task, false);
  if (!beside.ok()) return beside.status();
  round.members[0].figures = std::move(beside->members[0].figures);
  return round;
}

absl::StatusOr<Round> Runner::add_footprint(Round round, Side& side) {
  // What is only needed to make contact goes again first.
  absl::SleepFor(absl::Milliseconds(300));
  auto idle = side.run({.case_name = kFootprintCase, .seconds = 0}, true);
  if (!idle.ok()) return idle.status();
  for (std::size_t i = 0; i < round.members.size(); ++i) {
    round.members[i].figures = std::move(idle->members[i].figures);
  }
  return round;
}

std::vector<Runner::Result> Runner::rounds(const CaseSpec& spec, const std::string& transport,
                                           std::vector<Contender*>& sides) {
  const int count = rounds_of(spec, options_.rounds);
  const double seconds = options_.seconds * spec.weight / options_.rounds;
  std::vector<std::vector<Round>> all(sides.size());
  for (int n = 0; n < count; ++n) {
    for (std::size_t i = 0; i < sides.size(); ++i) {
      if (sides[i]->failed) continue;
      auto round = one_round(spec, transport, *sides[i], 1, seconds);
      if (round.ok()) {
        all[i].push_back(*std::move(round));
      } else {
        give_up(*sides[i], spec, round.status());
        if (i == 0) return {};
      }
    }
  }
  std::vector<Result> results;
  for (std::size_t i = 0; i < sides.size(); ++i) {
    if (sides[i]->failed) continue;
    Result result{.name = sides[i]->role->name};
    switch (spec.kind) {
      case CaseKind::kIdle: {
        std::vector<double> percents;
        for (const Round& round : all[i]) {
          percents.push_back(round.cpu_us / round.members[0].seconds / 1e4 / sides[i]->role->members);
        }
        result.figures = {{"cpu_percent", median(std::move(percents))}};
        break;
      }
      case CaseKind::kFirstContact:
        result.figures = {{"first_contact_ms", span_ms(all[i])}};
        add_point(spec.plot, transport, result.name, spec.members, result.figures[0].value);
        for (Figure& own : own_figures(all[i])) result.figures.push_back(std::move(own));
        break;
      case CaseKind::kKilledPeer:
      case CaseKind::kCutLink:
        result.figures = own_figures(all[i]);
        break;
      case CaseKind::kOversubscribed:
        result.figures = rate_figures(all[i]);
        for (Figure& f : latency_figures(all[i], 0)) {
          if (f.metric != "cpu_us_per_call") result.figures.push_back(std::move(f));
        }
        break;
      case CaseKind::kInFlight:
      case CaseKind::kQueued:
      case CaseKind::kLatency:
      case CaseKind::kTogether:
      case CaseKind::kTraining: {
        result.figures = latency_figures(all[i], spec.bytes_per_call);
        const double p50 = figure(result.figures, "p50_us");
        const double p99 = figure(result.figures, "p99_us");
        if (i == 0 && p50 > 0 && p99 > 0 && spec.suite == "rpc")
          result.figures.push_back({"p99_over_p50", p99 / p50});
        // What the ranks spend on meeting says nothing of the calls, and Open MPI's are no children of ours.
        if (spec.kind == CaseKind::kTogether) drop_figure(result.figures, "cpu_us_per_call");
        if (!spec.plot.empty()) {
          // Eight bytes are what add2 moves each way.
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

void Runner::in_flight(const CaseSpec& spec, const std::string& transport, std::vector<Contender*>& sides) {
  std::vector<Result> best(sides.size());
  const double seconds = std::max(0.1, options_.seconds * spec.weight / options_.rounds / 2);
  for (const int depth : kDepths) {
    std::vector<std::vector<Round>> all(sides.size());
    for (int n = 0; n < options_.rounds; ++n) {
      for (std::size_t i = 0; i < sides.size(); ++i) {
        if (sides[i]->failed) continue;
        auto round = one_round(spec, transport, *sides[i], depth, seconds);
        if (round.ok()) {
          all[i].push_back(*std::move(round));
        } else {
          give_up(*sides[i], spec, round.status());
          if (i == 0) return;
        }
      }
    }
    for (std::size_t i = 0; i < sides.size(); ++i) {
      if (sides[i]->failed) continue;
      std::vector<Figure> figures = rate_figures(all[i]);
      const double rate = figure(figures, "calls_per_s");
      add_point(spec.plot, transport, sides[i]->role->name, depth, rate);
      // Each side at its own best depth.
      if (rate > figure(best[i].figures, "calls_per_s")) best[i] = {sides[i]->role->name, std::move(figures)};
    }
  }
  std::vector<Result> results;
  for (std::size_t i = 0; i < sides.size(); ++i) {
    if (!sides[i]->failed) results.push_back(std::move(best[i]));
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
            .gradwire = ours.value};
    for (std::size_t i = 1; i < results.size(); ++i) {
      const double theirs = figure(results[i].figures, ours.metric);
      // Floors are there for what they need at least, not for their tails.
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
}

void Runner::add_point(const std::string& plot, const std::string& transport, const std::string& side,
                       double x, double y) {
  for (Curve& curve : report_.curves) {
    if (curve.plot == plot && curve.transport == transport && curve.side == side) {
      curve.points.emplace_back(x, y);
      return;
    }
  }
  report_.curves.push_back({plot, transport, side, {{x, y}}});
}

void Runner::give_up(Contender& contender, const CaseSpec& spec, const absl::Status& status) {
  contender.failed = true;
  ++contender.failures;
  contender.side.reset();
  report_.skipped.push_back(
      absl::StrCat(spec.suite, " ", spec.name, ": ", contender.role->name, ": ", status.message()));
}

}  // namespace gradwire::bench
