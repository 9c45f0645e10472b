#include "gradwire/tests/chaos/chaos_run.h"

#include <poll.h>
#include <signal.h>

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gradwire/tests/chaos/call_checks.h"
#include "gradwire/tests/chaos/sanitized.h"

namespace chaos {
namespace {

// The limit for steps that take milliseconds on an idle machine.
constexpr absl::Duration kTimeout = absl::Seconds(30);
// The longest allowed shutdown. A shutdown waits at most 5 s for news of a member that may be dead, and must
// not wait until heartbeats show the death.
constexpr absl::Duration kShutdown = absl::Seconds(18);

}  // namespace

ChaosRun::ChaosRun(Plan plan, Options options)
    : plan_(std::move(plan)), options_(std::move(options)), paused_(Plan::kWorkers) {}

void ChaosRun::fail(int worker, const std::string& what) {
  report_.failures.push_back(absl::StrCat(name(worker), ": ", what));
}

bool ChaosRun::planned(int worker) const {
  return std::any_of(plan_.kills.begin(), plan_.kills.end(),
                     [&](const Plan::Kill& kill) { return kill.worker == worker; });
}

bool ChaosRun::planned(Plan::Kill::When when) const {
  return std::any_of(plan_.kills.begin(), plan_.kills.end(),
                     [&](const Plan::Kill& kill) { return kill.when == when; });
}

void ChaosRun::send_to_all(const std::string& line) {
  for (int worker = 0; worker < Plan::kWorkers; ++worker) {
    if (!killed_.contains(worker) && !excluded_.contains(worker)) workers_[worker]->send_line(line);
  }
}

void ChaosRun::reap(int worker) {
  const std::optional<int> exit = workers_[worker]->wait(kTimeout);
  killed_.insert(worker);
  // The worker may have ended before the signal of a kill during the shutdown reached it.
  const bool may_be_done = exit == 0 && planned(worker) && planned(Plan::Kill::When::kInShutdown);
  if (exit == -SIGKILL && planned(worker)) {
    ++report_.killed;
  } else if (!may_be_done) {
    fail(worker, exit ? absl::StrCat("unexpected end with exit code ", *exit, " (below 0: a signal)")
                      : "closed its pipe, but does not exit");
  }
}

void ChaosRun::handle_line(int worker, const std::string& line, const std::string& word) {
  const std::vector<std::string> words = absl::StrSplit(line, absl::MaxSplits(' ', 3));
  int milliseconds = 0;
  if (words.size() > 1) (void)absl::SimpleAtoi(words[1], &milliseconds);
  if (words[0] == "unready" && word == "ready" && planned(Plan::Kill::When::kInInit)) {
    excluded_.insert(worker);
    int code = 0;
    (void)absl::SimpleAtoi(words[1], &code);
    const bool good = static_cast<absl::StatusCode>(code) == absl::StatusCode::kDeadlineExceeded ||
                      static_cast<absl::StatusCode>(code) == absl::StatusCode::kUnavailable;
    if (!good) fail(worker, line);
  } else if (words[0] == "full" && word == "empty") {
    // Without its log the group cannot agree on a death, so entries for dead workers stay in the tables.
    if (!plan_.store.log_lost() || killed_.empty())
      fail(worker, absl::StrCat("tables not empty after it dropped all references: ", line.substr(5)));
  } else if (words[0] != word) {
    fail(worker, absl::StrCat("unexpected line: got \"", line, "\", expected \"", word, "\""));
  } else if (word == "empty") {
    report_.emptying = std::max(report_.emptying, absl::Milliseconds(milliseconds));
  } else if (word == "down" && words.size() == 4) {
    report_.shutdown = std::max(report_.shutdown, absl::Milliseconds(milliseconds) - stalled());
    int code = 0;
    (void)absl::SimpleAtoi(words[2], &code);
    if (code != 0 && !may_end_with(worker, static_cast<absl::StatusCode>(code), words[3]))
      fail(worker, absl::StrCat("shutdown failed with code ", code, ": ", words[3]));
    if (absl::Milliseconds(milliseconds) > kShutdown + stalled())
      fail(worker, absl::StrCat("the shutdown took ", milliseconds, " ms"));
  } else if (word == "states" && line != absl::StrCat("states ", absl::StrJoin(dead(), ","))) {
    fail(worker, absl::StrCat("wrong list of dead workers: got \"", line, "\", expected \"states ",
                              absl::StrJoin(dead(), ","), "\""));
  } else if (word == "census" && line != "census same") {
    fail(worker, absl::StrCat("resources left after the shutdown: ", line));
  }
  answered_.insert(worker);
}

bool ChaosRun::may_end_with(int worker, absl::StatusCode code, const std::string& message) const {
  if (plan_.outcast() == worker) return code == absl::StatusCode::kAborted;
  // Aborted: the store has been started again, without its keys.
  if (plan_.store.log_lost() && absl::StrContains(message, "TcpStore"))
    return code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kAborted;
  if (code != absl::StatusCode::kUnavailable) return false;
  const std::set<int> all = dead();
  return std::any_of(all.begin(), all.end(), [&](int each) {
    return absl::StrContains(message, absl::StrCat("\"", name(each), "\""));
  });
}

ChaosRun::Event ChaosRun::signal_at(absl::Duration at, int worker, int signal) {
  return {at, [this, worker, signal] {
            if (killed_.contains(worker)) return;
            workers_[worker]->signal(signal);
            if (signal == SIGKILL) reap(worker);
          }};
}

std::vector<ChaosRun::Event> ChaosRun::store_events() {
  const Plan::StoreFault& fault = plan_.store;
  const absl::Duration end = fault.at + fault.length;
  std::vector<Event> events;
  switch (fault.what) {
    case Plan::StoreFault::What::kNone:
      return {};
    case Plan::StoreFault::What::kPause:
      events = {{fault.at, [this] { store_->pause(); }}, {end, [this] { store_->resume(); }}};
      break;
    case Plan::StoreFault::What::kKill:
      events = {{fault.at, [this] { store_->kill(); }}};
      break;
    case Plan::StoreFault::What::kRestart:
      events = {{fault.at, [this] { store_->kill(); }}, {end, [this] { store_->start(); }}};
      break;
  }
  events.push_back({end, [this] { ++report_.store_faults; }});
  return events;
}

bool ChaosRun::gather(const std::string& word, absl::Duration limit, std::vector<Event> events) {
  const absl::Time start = absl::Now();
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) { return a.at < b.at; });
  std::size_t next = 0;
  answered_.clear();
  if (word != "census") answered_ = excluded_;
  while (true) {
    const absl::Duration passed = absl::Now() - start;
    for (; next < events.size() && events[next].at <= passed; ++next) {
      events[next].happens();
    }
    std::vector<pollfd> polled;
    std::vector<int> living;
    for (int worker = 0; worker < Plan::kWorkers; ++worker) {
      if (killed_.contains(worker)) continue;
      if (answered_.contains(worker)) continue;
      if (std::optional<std::string> line = workers_[worker]->read_line()) {
        handle_line(worker, *line, word);
      } else if (workers_[worker]->output_closed()) {
        reap(worker);
      } else {
        polled.push_back({workers_[worker]->descriptor(), POLLIN, 0});
        living.push_back(worker);
      }
    }
    if (polled.empty() && next == events.size()) return report_.failures.empty();
    // StallWatch records a stall a moment after its end, so wait a little before the failure is reported.
    if (passed > limit + stalled() && (absl::SleepFor(absl::Milliseconds(50)), passed > limit + stalled())) {
      for (int worker : living)
        fail(worker, absl::StrCat("did not report \"", word, "\" within ", absl::FormatDuration(limit)));
      return false;
    }
    absl::Duration sleep = std::max(absl::Milliseconds(20), limit - passed + absl::Milliseconds(1));
    if (next < events.size()) sleep = std::min(sleep, events[next].at - passed + absl::Microseconds(500));
    (void)::poll(polled.data(), polled.size(), static_cast<int>(absl::ToInt64Milliseconds(sleep)));
  }
}

std::set<int> ChaosRun::dead() const {
  std::set<int> dead = killed_;
  if (plan_.outcast()) dead.insert(*plan_.outcast());
  return dead;
}

bool ChaosRun::end_outcast() {
  send_to_all("states");
  if (!gather("states", kTimeout)) return false;
  const std::optional<int> outcast = plan_.outcast();
  if (!outcast) return true;
  ++report_.outcasts;
  workers_[*outcast]->send_line("end");
  for (int worker = 0; worker < Plan::kWorkers; ++worker) {
    if (worker != *outcast) excluded_.insert(worker);
  }
  const bool ended = gather("down", kTimeout);
  excluded_ = {*outcast};
  return ended;
}

RunReport ChaosRun::run() {
  const absl::Time start = absl::Now();
  start_us_ = monotonic_us();
  int store_port = options_.store_port;
  if (plan_.store.what != Plan::StoreFault::What::kNone) {
    store_ =
        std::make_unique<StoreHost>(options_.store_program, absl::StrCat(options_.directory, "/store.log"));
    store_port = store_->port();
  }
  for (int worker = 0; worker < Plan::kWorkers; ++worker) {
    std::vector<std::string> command = {options_.worker_program, absl::StrCat(store_port),
                                        absl::StrCat(plan_.seed), absl::StrCat(worker), options_.directory};
    if (options_.lose_services) command.push_back("lose_services");
    workers_.push_back(std::make_unique<WorkerProcess>(
        command, absl::StrCat(options_.directory, "/", name(worker), ".log")));
  }
  std::vector<Event> events = store_events();
  std::vector<Event> first_events;
  std::vector<Event> last_events;
  for (const Plan::Kill& kill : plan_.kills) {
    if (kill.when == Plan::Kill::When::kInInit)
      first_events.push_back(signal_at(kill.at, kill.worker, SIGKILL));
    if (kill.when == Plan::Kill::When::kAtTime) events.push_back(signal_at(kill.at, kill.worker, SIGKILL));
    if (kill.when == Plan::Kill::When::kInShutdown)
      last_events.push_back(signal_at(kill.at / 20, kill.worker, SIGKILL));
  }
  for (const Plan::Pause& pause : plan_.pauses) {
    events.push_back(signal_at(pause.at, pause.worker, SIGSTOP));
    events.push_back(signal_at(pause.at + pause.length, pause.worker, SIGCONT));
    paused_[pause.worker] += pause.length;
  }
  if (const auto& pause = plan_.long_pause) {
    events.push_back(signal_at(pause->at, pause->worker, SIGSTOP));
    events.push_back(signal_at(pause->at + pause->length, pause->worker, SIGCONT));
    paused_[pause->worker] += pause->length;
  }
  auto play = [&] {
    if (!gather("ready", kTimeout, first_events)) return;
    if (!excluded_.empty()) {
      send_to_all("end");
      (void)gather("down", kTimeout);
      check_end();
      return;
    }
    send_to_all("begin");
    if (!gather("played", kTimeout, events)) return;
    if (plan_.long_pause && !end_outcast()) return;
    send_to_all(absl::StrCat("check ", absl::StrJoin(dead(), ",")));
    if (!gather("checked", kTimeout)) return;
    send_to_all("drop");
    // The run goes on if tables are not empty, so that the shutdown is checked, too.
    (void)gather("empty", kTimeout);
    send_to_all("end");
    (void)gather("down", kTimeout, last_events);
    check_end();
  };
  play();
  workers_.clear();
  store_ = nullptr;
  check_calls();
  report_.duration = absl::Now() - start - stalled();
  report_.stalled = stalled();
  return report_;
}

void ChaosRun::check_end() {
  std::set<int> survivors;
  for (int worker = 0; worker < Plan::kWorkers; ++worker) {
    if (!killed_.contains(worker)) survivors.insert(worker);
  }
  (void)gather("census", kTimeout);
  for (int worker : survivors) {
    if (killed_.contains(worker)) continue;
    const std::optional<int> exit = workers_[worker]->wait(kTimeout);
    if (!exit) {
      fail(worker, absl::StrCat("still running ", absl::FormatDuration(kTimeout), " after its shutdown"));
    } else if (*exit != 0 && !(planned(worker) && *exit == -SIGKILL)) {
      fail(worker, absl::StrCat("unexpected end with exit code ", *exit, " (below 0: a signal)"));
    }
  }
  for (int worker = 0; worker < Plan::kWorkers; ++worker) {
    // The helper process of a leak checker may end a moment later than the worker.
    const absl::Time give_up = absl::Now() + kTimeout;
    while (!kMayHaveSymbolizer && workers_[worker]->group_exists() && absl::Now() < give_up)
      absl::SleepFor(absl::Milliseconds(1));
    if (!kMayHaveSymbolizer && workers_[worker]->group_exists()) fail(worker, "left processes behind");
  }
}

void ChaosRun::check_calls() {
  for (int worker = 0; worker < Plan::kWorkers; ++worker) {
    const std::string log = absl::StrCat(options_.directory, "/", name(worker), ".calls");
    const std::vector<CallRecord> calls = read_call_log(log);
    report_.calls += static_cast<int>(calls.size());
    if (plan_.undelayed()) report_.undelayed_calls += static_cast<int64_t>(calls.size());
    report_.repeated += read_figure(log, "repeated");
    report_.suspected += read_figure(log, "suspected");
    for (const CallRecord& call : calls) {
      if (call.code != absl::StatusCode::kOk) ++report_.failed_calls;
    }
    if (killed_.contains(worker)) continue;
    CallConditions conditions{&plan_, dead(), paused_[worker] + stalled(), plan_.outcast() == worker};
    for (const CallRecord& call : calls) {
      if (call.end_us >= 0) {
        report_.overrun =
            std::max(report_.overrun, absl::Microseconds(call.end_us - call.deadline_us) - conditions.paused);
      }
      if (std::optional<std::string> wrong = check_call(call, conditions)) fail(worker, *wrong);
    }
  }
}

}  // namespace chaos
