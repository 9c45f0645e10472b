#include <ATen/ATen.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gradwire/autograd/autograd.h"
#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/flight/call_recorder.h"
#include "gradwire/rpc/testing/group.h"
#include "gtest/gtest.h"

// Backward passes in flight records, and the calls that they make.
namespace gradwire::autograd {

using at::Tensor;
using rpc::CallEvent;
using rpc::CallParent;

int64_t noted(int64_t value) { return value; }
GRADWIRE_RPC(noted)
Tensor half(const Tensor& x) { return x * 0.5; }
GRADWIRE_RPC(half)
Tensor half_and_note(const Tensor& x) {
  Tensor y = x * 0.5;
  // The hook runs in the pass, and calls the root.
  y.register_hook([](const Tensor&) { (void)rpc::rpc_sync<&noted>("worker0", 1); });
  return y;
}
GRADWIRE_RPC(half_and_note)
Tensor broken(const Tensor& x) {
  Tensor y = x * 0.5;
  y.register_hook([](const Tensor&) { throw std::runtime_error("the hook has failed"); });
  return y;
}
GRADWIRE_RPC(broken)

// A handler that is the root of a pass.
void train(const std::string& worker) {
  const Tensor x = at::ones({3}).set_requires_grad(true);
  Context context;
  backward(context.id(), {rpc::rpc_sync<&half>(worker, x).sum()});
}
GRADWIRE_RPC(train)

namespace {

std::vector<CallEvent> events_of(const std::shared_ptr<rpc::Agent>& agent, CallEvent::Kind kind) {
  const rpc::CallRecorder& recorder = agent->services().recorder();
  std::vector<CallEvent> events;
  for (uint64_t record = recorder.first(); record < recorder.next(); ++record) {
    CallEvent event;
    if (recorder.read(record, event) && event.kind == kind) events.push_back(event);
  }
  return events;
}

TEST(PassRecord, BothWorkersRecordAPassUnderOneIdentity) {
  rpc::testing::Group group(2);
  const rpc::AgentGuard guard(group[0]);
  {
    const Tensor x = at::ones({3}).set_requires_grad(true);
    Context context;
    backward(context.id(), {group[0]->rpc_sync<&half_and_note>("worker1", x).sum()});
  }
  group.expect_empty();
  const std::vector<CallEvent> root = events_of(group[0], CallEvent::Kind::kPass);
  const std::vector<CallEvent> other = events_of(group[1], CallEvent::Kind::kPass);
  ASSERT_EQ(root.size(), 1u);
  ASSERT_EQ(other.size(), 1u);
  EXPECT_EQ(root[0].peer, group[0]->services().self().incarnation);
  EXPECT_EQ(root[0].peer, other[0].peer);
  EXPECT_EQ(root[0].number, other[0].number);
  EXPECT_FALSE(root[0].parent);
  for (const CallEvent& event : {root[0], other[0]}) {
    EXPECT_TRUE(event.over());
    EXPECT_EQ(event.code, static_cast<uint8_t>(absl::StatusCode::kOk));
  }
  // The pass is the parent of its own messages, and of the call that its hook has made.
  const CallParent pass = CallParent::pass(root[0].peer, root[0].number);
  bool hook = false;
  bool message = false;
  for (const CallEvent& event : events_of(group[1], CallEvent::Kind::kMade)) {
    if (event.parent != pass) continue;
    hook = hook || event.name_view().find("noted") != absl::string_view::npos;
  }
  for (const CallEvent& event : events_of(group[0], CallEvent::Kind::kMade))
    message = message || (event.parent == pass && event.name_view().substr(0, 8) == "service ");
  EXPECT_TRUE(hook);
  EXPECT_TRUE(message);
}

TEST(PassRecord, FailedPassHasItsCode) {
  rpc::testing::Group group(2);
  const rpc::AgentGuard guard(group[0]);
  {
    const Tensor x = at::ones({3}).set_requires_grad(true);
    Context context;
    const Tensor y = group[0]->rpc_sync<&broken>("worker1", x).sum();
    EXPECT_ANY_THROW(backward(context.id(), {y}));
  }
  group.expect_empty();
  for (int rank = 0; rank < 2; ++rank) {
    const std::vector<CallEvent> passes = events_of(group[rank], CallEvent::Kind::kPass);
    ASSERT_EQ(passes.size(), 1u);
    EXPECT_TRUE(passes[0].over());
    EXPECT_NE(passes[0].code, static_cast<uint8_t>(absl::StatusCode::kOk));
  }
}

TEST(PassRecord, HandlerThatBeginsAPassIsItsParent) {
  rpc::testing::Group group(3);
  group[0]->rpc_sync<&train>("worker1", "worker2");
  group.expect_empty();
  const std::vector<CallEvent> passes = events_of(group[1], CallEvent::Kind::kPass);
  ASSERT_EQ(passes.size(), 1u);
  const std::vector<CallEvent> served = events_of(group[1], CallEvent::Kind::kServed);
  ASSERT_FALSE(served.empty());
  bool found = false;
  for (const CallEvent& call : served)
    found = found || passes[0].parent == CallParent::call({call.peer, call.number});
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace gradwire::autograd
