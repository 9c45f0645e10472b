#include "gradwire/tests/chaos/program.h"

#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/tests/chaos/services.h"

namespace chaos {
namespace {

using gradwire::Future;
using gradwire::rpc::Agent;
using gradwire::rpc::AgentGuard;
using gradwire::rpc::Destination;
using gradwire::rpc::RRef;

// Longer than any call takes that no fault delays, also on a busy machine.
constexpr absl::Duration kLongTimeout = absl::Seconds(20);

// One thread of a program. It executes random steps.
class ProgramThread {
 public:
  ProgramThread(Agent& agent, const Plan& plan, int worker, int thread)
      : agent_(agent),
        next_tag_((worker * 16 + thread + 1) * 1000000),
        seed_(plan.seed * 64 + worker * 16 + thread),
        undelayed_(plan.undelayed()) {}

  void run(int steps) {
    for (int step = 0; step < steps; ++step) {
      // Each step has its own seed, so that the results of earlier steps do not change it.
      std::seed_seq mixed{seed_ >> 32, seed_ & 0xffffffffu, static_cast<uint64_t>(step)};
      random_.seed(mixed);
      one_step();
    }
    for (Future<void>& call : calls_) (void)call.result();
  }

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }
  int any_worker() { return below(Plan::kWorkers); }
  absl::Duration short_timeout() { return absl::Milliseconds(40 + below(160)); }
  absl::Duration any_timeout() { return undelayed_ ? kLongTimeout : short_timeout(); }
  std::vector<int> any_path() {
    std::vector<int> path(1 + below(3));
    for (int& worker : path) worker = any_worker();
    return path;
  }
  static Destination to(int worker, absl::Duration timeout) {
    return Destination(worker).with_timeout(timeout);
  }
  static std::vector<int64_t> after_first(const std::vector<int>& path) {
    return {path.begin() + 1, path.end()};
  }

  template <class T>
  void finish_later(const Future<T>& call) {
    calls_.push_back(call.then([](const auto&) {}));
  }

  // Waits for the result and checks it, at random now or at the end of the program.
  template <class T, class Check>
  void finish(const Future<T>& call, Check check) {
    Future<void> checked = call.then([check](const absl::StatusOr<T>& result) {
      if (result.ok()) check(*result);
    });
    if (below(2) == 0) (void)checked.result();
    calls_.push_back(checked);
  }

  void one_step() {
    switch (below(19)) {
      case 0:
      case 1:
        return call_add();
      case 2:
        return call_text();
      case 3:
        return call_slow();
      case 4:
        return call_hold();
      case 5:
        return call_chain();
      case 6:
        return call_fail();
      case 7:
      case 8:
      case 9:
        return create();
      case 10:
        return own();
      case 11:
      case 12:
        return fetch();
      case 13:
        return share();
      case 14:
        return borrow();
      case 15:
      case 16:
      case 17:
        return call_once();
      default:
        return HeldReferences::instance().drop(random_());
    }
  }

  void call_add() {
    const int other = any_worker();
    const absl::Duration timeout = any_timeout();
    const int64_t a = below(1000), b = below(1000);
    finish(logged<int64_t>("add", {other}, timeout,
                           [&] { return agent_.rpc_async<&add>(to(other, timeout), a, b); }),
           [a, b](int64_t sum) {
             if (sum != a + b) report_violation(absl::StrCat("wrong sum of ", a, " and ", b, ": got ", sum));
           });
  }

  void call_text() {
    const int other = any_worker();
    const absl::Duration timeout = any_timeout();
    const int64_t size = below(4) == 0 ? below(300000) : below(5000);
    finish(logged<std::string>("text", {other}, timeout,
                               [&] { return agent_.rpc_async<&text>(to(other, timeout), size); }),
           [size](const std::string& text) {
             if (text != std::string(static_cast<std::size_t>(size), 'x'))
               report_violation(
                   absl::StrCat("wrong text: got ", text.size(), " bytes, expected ", size, " times \"x\""));
           });
  }

  void call_once() {
    const int other = any_worker();
    const absl::Duration timeout = any_timeout();
    const int64_t tag = next_tag_++;
    finish(logged<int64_t>("once", {other}, timeout,
                           [&] { return agent_.rpc_async<&run_once>(to(other, timeout), tag); }),
           [tag](int64_t runs) {
             if (runs != 1)
               report_violation(absl::StrCat("the idempotent call ", tag, " ran ", runs, " times"));
           });
  }

  void call_slow() {
    const int other = any_worker();
    const absl::Duration timeout = any_timeout();
    const int64_t duration = below(100);
    finish(logged<int64_t>("slow", {other}, timeout,
                           [&] { return agent_.rpc_async<&slow>(to(other, timeout), duration); }),
           [](int64_t) {});
  }

  void call_hold() {
    const int other = any_worker();
    const absl::Duration timeout = short_timeout();
    Future<void> call =
        logged<void>("hold", {other}, timeout, [&] { return agent_.rpc_async<&hold>(to(other, timeout)); });
    if (below(2) == 0) call.cancel();
    finish_later(call);
  }

  void call_chain() {
    const std::vector<int> path = any_path();
    const absl::Duration timeout = any_timeout();
    int64_t sum = 0;
    for (int worker : path) sum += worker;
    const bool blocking = below(2) == 0;
    finish(
        logged<int64_t>("chain", path, timeout,
                        [&] {
                          const Destination first = to(path[0], timeout);
                          return blocking ? agent_.rpc_async<&chain>(first, after_first(path))
                                          : agent_.rpc_async<&chain_async>(first, after_first(path));
                        }),
        [sum](int64_t got) {
          if (sum != got)
            report_violation(absl::StrCat("wrong result of a chain of calls: got ", got, ", expected ", sum));
        });
  }

  void call_fail() {
    const int other = any_worker();
    const absl::Duration timeout = any_timeout();
    finish(logged<int64_t>("fail", {other}, timeout,
                           [&] { return agent_.rpc_async<&fail>(to(other, timeout), below(10)); }),
           [](int64_t) { report_violation("a call of a function that throws succeeded"); });
  }

  void create() {
    const int owner = any_worker();
    const absl::Duration timeout = any_timeout();
    const int64_t tag = next_tag_++;
    RRef<Cell> cell;
    const int how = below(6);
    const Future<void> made = logged<void>(how == 0 ? "remote_failing" : "remote", {owner}, timeout, [&] {
      switch (how) {
        case 0:
          cell = agent_.remote<&make_failing>(to(owner, timeout), tag);
          break;
        case 1:
          cell = agent_.remote<&make_slowly>(to(owner, timeout), tag, below(80));
          break;
        default:
          cell = agent_.remote<Cell>(to(owner, timeout), tag);
      }
      return cell.handle()->created();
    });
    if (cell.handle() == nullptr) return;
    if (below(3) == 0) return finish_later(made);  // Drops the reference at once.
    if (how > 0 && below(2) == 0) {
      const bool certain = made.result().ok();
      HeldReferences::instance().add({cell, tag, certain});
    } else {
      finish_later(made);
      fetch(Held{cell, tag, false});
      if (how > 0) HeldReferences::instance().add({cell, tag, false});
    }
  }

  void own() {
    const int64_t tag = next_tag_++;
    HeldReferences::instance().add({RRef<Cell>(Cell(tag)), tag, true});
  }

  void fetch() {
    if (std::optional<Held> held = HeldReferences::instance().pick(random_())) fetch(*std::move(held));
  }

  void fetch(Held held) {
    const int owner = held.cell.owner().id;
    const absl::Duration timeout = any_timeout();
    const RRef<Cell> cell = held.cell.with_timeout(timeout);
    const std::string certain = held.certain ? "certain" : "uncertain";
    const int64_t tag = held.tag;
    if (below(2) == 0) {
      finish(logged<Cell>("fetch_" + certain, {owner}, timeout, [&] { return cell.to_here_async(); }),
             [tag](const Cell& cell) {
               if (cell.tag() != tag)
                 report_violation(
                     absl::StrCat("wrong value of a reference: got ", cell.tag(), ", expected ", tag));
             });
    } else {
      finish(
          logged<int64_t>("method_" + certain, {owner}, timeout,
                          [&] { return cell.rpc_async<&Cell::plus>(int64_t{1}); }),
          [tag](int64_t sum) {
            if (sum != tag + 1)
              report_violation(absl::StrCat("wrong result of Cell::plus: got ", sum, ", expected ", tag + 1));
          });
    }
  }

  void share() {
    const absl::Duration timeout = any_timeout();
    if (below(2) == 0) {
      std::vector<Held::Wire> wires;
      for (int i = 1 + below(3); i > 0; --i) {
        if (std::optional<Held> held = HeldReferences::instance().pick(random_()))
          wires.push_back(held->to_wire());
      }
      const int other = any_worker();
      finish_later(logged<void>("keep", {other}, timeout,
                                [&] { return agent_.rpc_async<&keep>(to(other, timeout), wires); }));
    } else if (std::optional<Held> held = HeldReferences::instance().pick(random_())) {
      const std::vector<int> path = any_path();
      finish_later(logged<void>("pass_on", path, timeout, [&] {
        return agent_.rpc_async<&pass_on>(to(path[0], timeout), held->to_wire(), after_first(path));
      }));
    }
  }

  void borrow() {
    const int other = any_worker();
    const absl::Duration timeout = any_timeout();
    finish(logged<std::vector<Held::Wire>>(
               "lend", {other}, timeout,
               [&] { return agent_.rpc_async<&lend>(to(other, timeout), int64_t{1 + below(4)}); }),
           [](const std::vector<Held::Wire>& lent) { keep(lent); });
  }

  Agent& agent_;
  int64_t next_tag_;
  const uint64_t seed_;
  const bool undelayed_;
  std::mt19937_64 random_;
  std::vector<Future<void>> calls_;
};

constexpr absl::Duration kCheckTimeout = absl::Seconds(15);

// Makes a call, and repeats it while it fails with Unavailable because a connection broke. To a dead worker
// each attempt fails with Unavailable.
template <class T, class F>
absl::Status retry_while_unavailable(const std::string& operation, int worker, F start) {
  const absl::Time end = absl::Now() + kCheckTimeout;
  const uint64_t id = CallLog::instance().begin(operation, {worker}, kCheckTimeout);
  absl::Status status;
  do {
    try {
      status = gradwire::future_internal::status_of(Future<T>(start()).result());
    } catch (const gradwire::Error& error) {
      status = error.status();
    }
    if (!absl::IsUnavailable(status)) break;
    absl::SleepFor(absl::Milliseconds(5));
  } while (absl::Now() < end);
  CallLog::instance().end(id, status);
  return status;
}

}  // namespace

void run_program(const std::shared_ptr<Agent>& agent, const Plan& plan, int worker) {
  std::vector<std::thread> threads;
  for (int thread = 0; thread < plan.threads; ++thread) {
    threads.emplace_back([&, thread] {
      AgentGuard guard(agent);
      ProgramThread(*agent, plan, worker, thread).run(plan.steps);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void check_workers_and_references(const std::shared_ptr<Agent>& agent, int worker,
                                  const std::set<int>& dead) {
  AgentGuard guard(agent);
  for (int other = 0; other < Plan::kWorkers; ++other) {
    const Destination to = Destination(other).with_timeout(kCheckTimeout);
    if (dead.contains(other)) {
      (void)logged<int64_t>("call_dead", {other}, kCheckTimeout, [&] {
        return agent->rpc_async<&add>(to, 1, 2);
      }).result();
    } else {
      (void)retry_while_unavailable<int64_t>("call_living", other,
                                             [&] { return agent->rpc_async<&add>(to, 1, 2); });
    }
  }
  for (const Held& held : HeldReferences::instance().all()) {
    const int owner = held.cell.owner().id;
    const RRef<Cell> cell = held.cell.with_timeout(kCheckTimeout);
    if (dead.contains(owner)) {
      const char* const operation = held.certain ? "fetch_from_dead" : "fetch_uncertain";
      (void)logged<Cell>(operation, {owner}, kCheckTimeout, [&] { return cell.to_here_async(); }).result();
    } else if (held.certain) {
      (void)retry_while_unavailable<Cell>("fetch_last", owner, [&] { return cell.to_here_async(); });
    }
  }
}

}  // namespace chaos
