#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/csrc/autograd/profiler_legacy.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/rpc/profile/call_profiler.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/rpc/testing/group.h"

namespace gradwire::rpc {

// Outside the unnamed namespace, so that the names in the profile are simple.
at::Tensor profiled_scale(const at::Tensor& x, double by) { return x * by; }
GRADWIRE_RPC(profiled_scale)
at::Tensor profiled_failure(const at::Tensor& x) { return at::matmul(x, at::zeros({7, 7, 7, 7})); }
GRADWIRE_RPC(profiled_failure)
at::Tensor profiled_through(const at::Tensor& x) { return rpc_sync<&profiled_scale>("worker2", x, 3.0) + 1; }
GRADWIRE_RPC(profiled_through)
at::Tensor profiled_work(const at::Tensor& x) {
  at::Tensor y = x;
  for (int i = 0; i < 2000; ++i) y = y + 1;
  return y;
}
GRADWIRE_RPC(profiled_work)

// Blocks until the test opens it.
Promise<void>& profiled_gate() {
  static Promise<void> gate;
  return gate;
}
at::Tensor profiled_wait(const at::Tensor& x) {
  profiled_gate().future().wait();
  return x + 1;
}
GRADWIRE_RPC(profiled_wait)
Future<at::Tensor> profiled_later(at::Tensor x) {
  at::Tensor y = co_await rpc_async<&profiled_scale>("worker2", x, 3.0);
  co_return y + 1;
}
GRADWIRE_RPC(profiled_later)

namespace {

using ::testing::Contains;

constexpr char kScale[] = "rpc_sync#gradwire::rpc::profiled_scale(worker0 -> worker1)";

// The names of all ranges that end while it exists, on all threads.
class Observer {
 public:
  Observer() {
    instance() = this;
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback(
            [](const at::RecordFunction& range) -> std::unique_ptr<at::ObserverContext> {
              (void)range;
              return nullptr;
            },
            [](const at::RecordFunction& range, at::ObserverContext*) {
              MutexLock lock(instance()->mutex_);
              instance()->names_.insert(range.name());
            })
            .scopes({at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE}));
  }
  ~Observer() { at::removeCallback(handle_); }
  std::set<std::string> names() {
    MutexLock lock(mutex_);
    return names_;
  }

 private:
  static Observer*& instance() {
    static Observer* current = nullptr;
    return current;
  }
  at::CallbackHandle handle_;
  Mutex mutex_;
  std::set<std::string> names_;
};

class CallProfile : public ::testing::Test {
 protected:
  ~CallProfile() override { group_.expect_empty(); }
  testing::Group group_{3};
};

TEST_F(CallProfile, ObserversSeeCallsAndHandlers) {
  AgentGuard guard(group_[0]);
  const at::Tensor x = at::ones({3});
  Observer observer;
  rpc_sync<&profiled_scale>("worker1", x, 2.0);
  rpc_async<&profiled_scale>("worker1", x, 2.0).wait();
  {
    const RRef<at::Tensor> y = remote<&profiled_scale>("worker1", x, 2.0);
    y.to_here();
  }
  rpc_sync<at::Tensor>("worker1", Op("aten::add"), x, 3);
  group_.expect_empty();
  const std::set<std::string> names = observer.names();
  for (const char* name : {"rpc_sync#gradwire::rpc::profiled_scale(worker0 -> worker1)",
                           "rpc_async#gradwire::rpc::profiled_scale(worker0 -> worker1)",
                           "rpc_remote#gradwire::rpc::profiled_scale(worker0 -> worker1)",
                           "to_here(worker0 -> worker1)", "rpc_sync#aten::add(worker0 -> worker1)",
                           "rpc_handler#gradwire::rpc::profiled_scale(worker0 -> worker1)"}) {
    EXPECT_THAT(names, Contains(name));
  }
}

TEST_F(CallProfile, WithoutAnObserverNothingIsProfiled) {
  EXPECT_NE(call_profiler(), nullptr);
  EXPECT_EQ(active_call_profiler(), nullptr);
}

TEST_F(CallProfile, FailedCallsEnd) {
  AgentGuard guard(group_[0]);
  Observer observer;
  EXPECT_FALSE(status_of([] { rpc_sync<&profiled_failure>("worker1", at::ones({3})); }).ok());
  EXPECT_FALSE(status_of([] { rpc_sync<&profiled_failure>("nobody", at::ones({3})); }).ok());
  EXPECT_THAT(observer.names(), Contains("rpc_sync#gradwire::rpc::profiled_failure(worker0 -> worker1)"));
  EXPECT_THAT(observer.names(), Contains("rpc_handler#gradwire::rpc::profiled_failure(worker0 -> worker1)"));
}

using torch::autograd::profiler::KinetoEvent;
namespace impl = torch::profiler::impl;

// Runs `action` under libtorch's current profiler, and returns its events.
std::vector<KinetoEvent> profile(const std::function<void()>& action) {
  const impl::ProfilerConfig config(impl::ProfilerState::KINETO);
  const std::set<impl::ActivityType> activities = {impl::ActivityType::CPU};
  torch::autograd::profiler::prepareProfiler(config, activities);
  torch::autograd::profiler::enableProfiler(config, activities);
  action();
  return torch::autograd::profiler::disableProfiler()->events();
}

const KinetoEvent* find(const std::vector<KinetoEvent>& events, const std::string& name) {
  const auto found = std::find_if(events.begin(), events.end(),
                                  [&name](const KinetoEvent& event) { return event.name() == name; });
  return found == events.end() ? nullptr : &*found;
}

TEST_F(CallProfile, TheProfilerOfTheCallerGetsTheEventsOfTheCallee) {
  AgentGuard guard(group_[0]);
  const auto events = profile([] {
    rpc_sync<&profiled_work>("worker1", at::ones({3}));
    rpc_async<&profiled_scale>("worker1", at::ones({3}), 2.0).wait();
  });
  const std::string call = "rpc_sync#gradwire::rpc::profiled_work(worker0 -> worker1)";
  const KinetoEvent* const whole = find(events, call);
  ASSERT_NE(whole, nullptr);
  EXPECT_GT(whole->durationNs(), 0u);
  const KinetoEvent* const handler = find(events, call + "#remote_op: gradwire::rpc::profiled_work");
  ASSERT_NE(handler, nullptr);
  EXPECT_EQ(handler->backend(), "worker1");
  EXPECT_GT(handler->durationNs(), 0u);
  EXPECT_GE(handler->startNs(), whole->startNs());
  EXPECT_LE(handler->endNs(), whole->endNs());
  const auto adds = std::count_if(events.begin(), events.end(), [&call](const KinetoEvent& event) {
    return event.name() == call + "#remote_op: aten::add";
  });
  // Only 512 events are sent, which include the handler and what the additions call.
  EXPECT_GT(adds, 100);
  EXPECT_LT(adds, 512);
  const std::string scale = "rpc_async#gradwire::rpc::profiled_scale(worker0 -> worker1)";
  EXPECT_NE(find(events, scale), nullptr);
  EXPECT_NE(find(events, scale + "#remote_op: aten::mul"), nullptr);
}

TEST_F(CallProfile, NestedCallsBelongToTheirHandlers) {
  AgentGuard guard(group_[0]);
  const auto events = profile([] { rpc_sync<&profiled_through>("worker1", at::ones({3})); });
  const std::string call = "rpc_sync#gradwire::rpc::profiled_through(worker0 -> worker1)#remote_op: ";
  EXPECT_NE(find(events, call + "rpc_sync#gradwire::rpc::profiled_scale(worker1 -> worker2)"), nullptr);
  EXPECT_NE(find(events, call + "aten::add"), nullptr);
  // The handler of the third worker may run on the thread that waits in the second one.
  EXPECT_EQ(find(events, call + "aten::mul"), nullptr);
}

TEST_F(CallProfile, HandlersThatEndLaterSendWhatTheirFirstThreadDid) {
  AgentGuard guard(group_[0]);
  const auto events = profile([] { rpc_sync<&profiled_later>("worker1", at::ones({3})); });
  const std::string call = "rpc_sync#gradwire::rpc::profiled_later(worker0 -> worker1)";
  EXPECT_NE(find(events, call + "#remote_op: gradwire::rpc::profiled_later"), nullptr);
  EXPECT_NE(find(events, call + "#remote_op: rpc_async#gradwire::rpc::profiled_scale(worker1 -> worker2)"),
            nullptr);
}

TEST_F(CallProfile, ACallMayOutliveTheProfiler) {
  AgentGuard guard(group_[0]);
  profiled_gate() = Promise<void>();
  Future<at::Tensor> later;
  const auto events = profile([&] { later = rpc_async<&profiled_wait>("worker1", at::ones({3})); });
  EXPECT_EQ(find(events, "rpc_async#gradwire::rpc::profiled_wait(worker0 -> worker1)"), nullptr);
  profiled_gate().set_value();
  EXPECT_EQ(later.wait().sum().item<double>(), 6);
  // A profiler that begins later does not get the event either.
  EXPECT_EQ(find(profile([] {}), "rpc_async#gradwire::rpc::profiled_wait(worker0 -> worker1)"), nullptr);
}

TEST_F(CallProfile, TheLegacyProfilerGetsTheNames) {
  AgentGuard guard(group_[0]);
  std::set<std::string> names;
  {
    torch::autograd::profiler::TLSLegacyProfilerGuard profiler(impl::ProfilerConfig(impl::ProfilerState::CPU),
                                                               [&names](const auto& threads) {
                                                                 for (const auto& events : threads) {
                                                                   for (const auto& event : events)
                                                                     names.insert(event.name());
                                                                 }
                                                               });
    rpc_sync<&profiled_scale>("worker1", at::ones({3}), 2.0);
  }
  EXPECT_THAT(names, Contains(kScale));
  EXPECT_THAT(names, Contains(std::string(kScale) + "#remote_op: aten::mul"));
}

}  // namespace
}  // namespace gradwire::rpc
