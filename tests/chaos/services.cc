#include "gradwire/tests/chaos/services.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/rpc/core/call_context.h"
#include "gradwire/tests/chaos/plan.h"

namespace chaos {
namespace {

using gradwire::Future;
using gradwire::Promise;
using gradwire::rpc::Agent;
using gradwire::rpc::CallContext;
using gradwire::rpc::Destination;

constexpr std::size_t kMaxHeld = 24;

int64_t own_id() { return Agent::current()->get_worker_info().id; }

std::vector<int64_t> rest_of(const std::vector<int64_t>& path) { return {path.begin() + 1, path.end()}; }

// The time until the deadline of the call that this thread serves.
absl::Duration time_left() { return CallContext::current()->deadline().left(); }

std::vector<int> ids(const std::vector<int64_t>& path) { return {path.begin(), path.end()}; }

}  // namespace

HeldReferences& HeldReferences::instance() {
  static auto* const held = new HeldReferences;
  return *held;
}

void HeldReferences::add(Held held) {
  gradwire::MutexLock lock(mutex_);
  if (closed_ || held_.size() >= kMaxHeld) return;
  held_.push_back(std::move(held));
}

std::optional<Held> HeldReferences::pick(uint64_t random) {
  gradwire::MutexLock lock(mutex_);
  if (held_.empty()) return std::nullopt;
  return held_[random % held_.size()];
}

void HeldReferences::drop(uint64_t random) {
  Held dropped;  // Destroyed after the lock is released.
  gradwire::MutexLock lock(mutex_);
  if (held_.empty()) return;
  std::swap(held_[random % held_.size()], held_.back());
  dropped = std::move(held_.back());
  held_.pop_back();
}

std::vector<Held> HeldReferences::all() {
  gradwire::MutexLock lock(mutex_);
  return held_;
}

void HeldReferences::close() {
  std::vector<Held> dropped;
  gradwire::MutexLock lock(mutex_);
  closed_ = true;
  dropped.swap(held_);
}

int64_t add(int64_t a, int64_t b) { return a + b; }
GRADWIRE_RPC(add)

std::string text(int64_t size) { return std::string(static_cast<std::size_t>(size), 'x'); }
GRADWIRE_RPC(text)

int64_t run_once(int64_t tag) {
  struct Runs {
    gradwire::Mutex mutex;
    std::map<int64_t, int64_t> by_tag ABSL_GUARDED_BY(mutex);
  };
  static auto* const runs = new Runs;
  gradwire::MutexLock lock(runs->mutex);
  return ++runs->by_tag[tag];
}
GRADWIRE_RPC_IDEMPOTENT(run_once)

int64_t slow(int64_t milliseconds) {
  const absl::Time end = absl::Now() + absl::Milliseconds(milliseconds);
  while (absl::Now() < end && !CallContext::current()->cancelled()) absl::SleepFor(absl::Milliseconds(1));
  return milliseconds;
}
GRADWIRE_RPC(slow)

Future<void> hold() {
  Promise<void> never;
  // The callback of the token holds the promise until the caller cancels the call or is lost.
  CallContext::current()->cancellation().on_cancelled(
      [never] { never.set_error(absl::CancelledError("cancelled by the caller")); });
  return never.future();
}
GRADWIRE_RPC(hold)

int64_t fail(int64_t n) { throw std::runtime_error(absl::StrCat("failing on purpose: ", n)); }
GRADWIRE_RPC(fail)

int64_t chain(const std::vector<int64_t>& path) {
  if (path.empty()) return own_id();
  const auto result = logged<int64_t>("chained", ids(path), time_left(), [&] {
                        return gradwire::rpc::rpc_async<&chain>(static_cast<int32_t>(path[0]), rest_of(path));
                      }).result();
  return gradwire::value_or_throw(result) + own_id();
}
GRADWIRE_RPC(chain)

Future<int64_t> chain_async(const std::vector<int64_t>& path) {
  const int64_t self = own_id();
  if (path.empty()) return Future<int64_t>(self);
  return logged<int64_t>("chained", ids(path), time_left(),
                         [&] {
                           return gradwire::rpc::rpc_async<&chain_async>(static_cast<int32_t>(path[0]),
                                                                         rest_of(path));
                         })
      .then([self](int64_t sum) { return sum + self; });
}
GRADWIRE_RPC(chain_async)

GRADWIRE_RPC_CLASS(Cell, int64_t)
GRADWIRE_RPC_METHOD(Cell, plus)

Cell make_slowly(int64_t tag, int64_t milliseconds) {
  slow(milliseconds);
  return Cell(tag);
}
GRADWIRE_RPC(make_slowly)

Cell make_failing(int64_t tag) { throw std::runtime_error(absl::StrCat("failing on purpose: cell ", tag)); }
GRADWIRE_RPC(make_failing)

void keep(const std::vector<Held::Wire>& held) {
  for (const Held::Wire& one : held) HeldReferences::instance().add(Held::from_wire(one));
}
GRADWIRE_RPC(keep)

void pass_on(const Held::Wire& held, const std::vector<int64_t>& path) {
  HeldReferences::instance().add(Held::from_wire(held));
  if (path.empty()) return;
  gradwire::throw_if_error(logged<void>("passed", ids(path), time_left(), [&] {
                             return gradwire::rpc::rpc_async<&pass_on>(static_cast<int32_t>(path[0]), held,
                                                                       rest_of(path));
                           }).result());
}
GRADWIRE_RPC(pass_on)

std::vector<Held::Wire> lend(int64_t count) {
  std::vector<Held::Wire> lent;
  for (const Held& held : HeldReferences::instance().all()) {
    if (static_cast<int64_t>(lent.size()) == count) break;
    lent.push_back(held.to_wire());
  }
  return lent;
}
GRADWIRE_RPC(lend)

void report_violation(const std::string& what) {
  const uint64_t id = CallLog::instance().begin("violation", {}, absl::ZeroDuration());
  CallLog::instance().end(id, absl::InternalError(what));
}

}  // namespace chaos
