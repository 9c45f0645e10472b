#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gradwire/base/duty.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/rpc/testing/group.h"

// Tensors, operators and TorchScript between agents.
namespace gradwire::rpc {
namespace {

using ::testing::HasSubstr;

at::Tensor scale(const at::Tensor& x, double by) { return x * by; }
GRADWIRE_RPC(scale)

at::Tensor echo(const at::Tensor& x) { return x; }
GRADWIRE_RPC(echo)

// An object that stays with its owner and changes there.
struct Resident {
  explicit Resident(int64_t n) : value(at::zeros({n})) {}
  at::Tensor pull() const { return value; }
  void fill(double with) { value.fill_(with); }
  at::Tensor value;
};
GRADWIRE_RPC_CLASS(Resident, int64_t)
GRADWIRE_RPC_METHOD(Resident, pull)
GRADWIRE_RPC_METHOD(Resident, fill)

class TorchAgent : public ::testing::Test {
 protected:
  ~TorchAgent() override { group_.expect_empty(); }
  testing::Group group_{2};
};

TEST_F(TorchAgent, TensorsTravelBothWays) {
  const at::Tensor large = at::rand({300, 400});
  EXPECT_TRUE(at::equal(group_[0]->rpc_sync<&scale>("worker1", large, 2.0), large * 2.0));
  const at::Tensor view = large.t().slice(0, 10, 50, 3);
  EXPECT_TRUE(at::equal(group_[0]->rpc_sync<&echo>("worker1", view), view));
  EXPECT_TRUE(at::equal(group_[0]->rpc_sync<&echo>("worker0", large), large)) << "to oneself";
}

double sum_of(const at::Tensor& x) { return x.sum().item<double>(); }
GRADWIRE_RPC(sum_of)

// The transport drops the memory of a message on the thread that has sent the last of it: often the thread of
// the caller, whose frames may hold a mutex that the deleter wants.
TEST(TensorDeleter, RunsOnTheExecutor) {
  constexpr int64_t kElements = int64_t{4} << 20;
  for (const char* transport : {"shm", "tcp"}) {
    SCOPED_TRACE(transport);
    RpcBackendOptions options;
    options.transports = {transport};
    testing::Group group(2, options);
    absl::Notification deleted;
    bool on_executor = false;
    bool in_duty = false;
    auto memory = std::make_unique<std::vector<float>>(kElements, 1.0F);
    float* const begin = memory->data();
    at::Tensor tensor = at::from_blob(begin, {kElements}, [&, owner = std::move(memory).release()](void*) {
      on_executor = Executor::current() != nullptr;
      in_duty = on_duty();
      delete owner;
      deleted.Notify();
    });
    const Future<double> sum = group[0]->rpc_async<&sum_of>("worker1", std::move(tensor));
    EXPECT_EQ(sum.wait(), static_cast<double>(kElements));
    deleted.WaitForNotification();
    EXPECT_TRUE(on_executor);
    EXPECT_FALSE(in_duty);
    group.expect_empty();
  }
}

// The tensor that mark() received last, not a copy of it.
at::Tensor& received() {
  static auto* tensor = new at::Tensor;
  return *tensor;
}
void mark(at::Tensor tensor) {
  tensor.fill_(42);
  received() = std::move(tensor);
}
GRADWIRE_RPC(mark)

TEST_F(TorchAgent, TensorMadeForAWorkerTravelsWithoutACopy) {
  group_[0]->rpc_sync<&echo>("worker1", at::ones({1}));  // Connects the workers.
  at::Tensor made = empty_for(group_[0], "worker1", {1000, 1000}, at::kFloat);
  made.fill_(7);
  const auto* memory = made.const_data_ptr<float>();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 64, 0u);
  group_[0]->rpc_sync<&mark>("worker1", std::move(made));
  // The callee wrote into the memory that the caller had allocated.
  EXPECT_EQ(memory[999'999], 42);
  EXPECT_EQ(received().sum().item<double>(), 42e6);

  // A tensor that is not moved into the call is copied.
  at::Tensor kept = empty_for(group_[0], "worker1", {1000, 1000}, at::kFloat);
  kept.fill_(7);
  group_[0]->rpc_sync<&mark>("worker1", kept);
  EXPECT_EQ(kept.sum().item<double>(), 7e6);
  received() = at::Tensor();
  EXPECT_THROW(empty_for(group_[0], "nobody", {1}), Error);
  EXPECT_EQ(empty_for(group_[0], "worker1", {0, 3}, at::kLong).sizes(), (std::vector<int64_t>{0, 3}));
}

at::Tensor increase(at::Tensor tensor) {
  tensor.add_(1);
  return tensor;
}
GRADWIRE_RPC(increase)
at::Tensor keep(at::Tensor tensor) {
  received() = tensor;
  return tensor;
}
GRADWIRE_RPC(keep)

TEST_F(TorchAgent, TensorThatCameFromAWorkerGoesBackWithoutACopy) {
  group_[0]->rpc_sync<&echo>("worker1", at::ones({1}));  // Connects the workers.
  for (const bool made_for_worker : {true, false}) {
    at::Tensor x = made_for_worker ? empty_for(group_[0], "worker1", {1000, 1000}, at::kFloat)
                                   : at::empty({1000, 1000}, at::kFloat);
    x.fill_(0);
    // An ordinary tensor is copied on its first way.
    if (!made_for_worker) x = group_[0]->rpc_sync<&increase>("worker1", std::move(x));
    const void* const memory = x.const_data_ptr();
    const float before = x[0][0].item<float>();
    for (int i = 0; i < 5; ++i) {
      x = group_[0]->rpc_sync<&increase>("worker1", std::move(x));
      EXPECT_EQ(x.const_data_ptr(), memory) << i;
    }
    EXPECT_TRUE(x.eq(before + 5).all().item<bool>());

    // The callee keeps a tensor that does not change any more.
    x = group_[0]->rpc_sync<&keep>("worker1", std::move(x));
    x.fill_(9);
    EXPECT_TRUE(received().eq(before + 5).all().item<bool>());
    received() = at::Tensor();
    // The tensor that the caller keeps does not change either.
    const at::Tensor other = x;
    EXPECT_TRUE(group_[0]->rpc_sync<&increase>("worker1", std::move(x)).eq(10).all().item<bool>());
    EXPECT_TRUE(other.eq(9).all().item<bool>());
    // A part of a tensor is copied.
    x = group_[0]->rpc_sync<&increase>("worker1", other);
    EXPECT_TRUE(group_[0]->rpc_sync<&increase>("worker1", x.slice(0, 1)).eq(11).all().item<bool>());
    EXPECT_TRUE(x.eq(10).all().item<bool>());
  }
}

TEST_F(TorchAgent, CallerMayChangeTensorsAfterAsyncCall) {
  at::Tensor tensor = at::ones({1 << 20});
  std::vector<Future<at::Tensor>> answers;
  for (int i = 0; i < 8; ++i) {
    answers.push_back(group_[0]->rpc_async<&echo>(i % 2 == 0 ? "worker1" : "worker0", tensor));
    tensor.add_(1);
  }
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(answers[i].wait().eq(i + 1).all().item<bool>()) << i;
}

TEST_F(TorchAgent, LaterChangesOfTheOwnerDoNotReachAResult) {
  RRef<Resident> resident = group_[0]->remote<Resident>("worker1", 1 << 18);
  const at::Tensor before = resident.rpc_sync<&Resident::pull>();
  resident.rpc_sync<&Resident::fill>(3.0);
  EXPECT_TRUE(before.eq(0).all().item<bool>());
  EXPECT_TRUE(resident.rpc_sync<&Resident::pull>().eq(3).all().item<bool>());
}

TEST_F(TorchAgent, OperatorsRunByName) {
  const at::Tensor x = at::rand({2, 3});
  EXPECT_TRUE(at::equal(group_[0]->rpc_sync<at::Tensor>("worker1", Op("aten::add"), x, 3, kw("alpha", 2)),
                        at::add(x, 3, 2)));
  EXPECT_TRUE(at::equal(group_[0]->rpc_sync<at::Tensor>("worker1", Op("aten::mul.Tensor"), x, x), x * x));
  EXPECT_EQ(group_[0]->rpc_async<int64_t>("worker1", Op("aten::size.int"), x, 1).wait(), 3);
  RRef<at::Tensor> sum = group_[0]->remote<at::Tensor>("worker1", Op("aten::add"), x, x);
  EXPECT_TRUE(at::equal(sum.to_here(), x + x));
  EXPECT_TRUE(at::equal(sum.rpc_sync<at::Tensor>(Op("aten::view"), std::vector<int64_t>{3, 2}),
                        (x + x).view({3, 2})));
}

TEST_F(TorchAgent, OperatorErrorsSayWhatIsWrong) {
  const absl::Status denied =
      status_of([&] { group_[0]->rpc_sync<at::Tensor>("worker1", Op("aten::from_file"), std::string("x")); });
  EXPECT_TRUE(absl::IsPermissionDenied(denied)) << denied;
  EXPECT_THAT(std::string(denied.message()), HasSubstr("aten::from_file"));
  const absl::Status wrong =
      status_of([&] { group_[0]->rpc_sync<at::Tensor>("worker1", Op("aten::add"), true); });
  EXPECT_TRUE(absl::IsInvalidArgument(wrong)) << wrong;
  const absl::Status shapes = status_of(
      [&] { group_[0]->rpc_sync<at::Tensor>("worker1", Op("aten::add"), at::rand({2}), at::rand({3})); });
  EXPECT_EQ(shapes.code(), absl::StatusCode::kUnknown);
  EXPECT_EQ(worker_of(shapes), "worker1");
}

TEST_F(TorchAgent, TorchScriptFunctionsRunByName) {
  register_script("torch_agent_test",
                  "def twice(x: Tensor, times: int = 2) -> Tensor:\n  return x * times\n");
  const at::Tensor x = at::rand({4});
  EXPECT_TRUE(
      at::equal(group_[0]->rpc_sync<at::Tensor>("worker1", Script("torch_agent_test.twice"), x), x * 2));
  const c10::IValue third =
      group_[0]->rpc_sync<c10::IValue>("worker1", Script("torch_agent_test.twice"), x, kw("times", 3));
  EXPECT_TRUE(at::equal(third.toTensor(), x * 3));
  const absl::Status unknown =
      status_of([&] { group_[0]->rpc_sync<at::Tensor>("worker1", Script("torch_agent_test.thrice"), x); });
  EXPECT_TRUE(absl::IsNotFound(unknown)) << unknown;
}

}  // namespace
}  // namespace gradwire::rpc
