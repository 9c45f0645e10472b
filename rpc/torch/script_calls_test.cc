#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/compilation_unit.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/rpc/testing/group.h"

namespace gradwire::rpc {
namespace {

using ::testing::HasSubstr;

constexpr char kCallsSource[] = R"(
def twice(x: Tensor, times: int = 2) -> Tensor:
  return x * times

def fetch(rref: RRef[Tensor]) -> Tensor:
  return rref.to_here() + 1

def fetch_for(rref: RRef[Tensor], timeout: float) -> Tensor:
  return rref.to_here(timeout)

def fetch_all(rrefs: List[RRef[Tensor]]) -> Tensor:
  total = torch.zeros([2])
  for rref in rrefs:
    total = total + rref.to_here()
  return total

def describe(rref: RRef[Tensor]) -> Tuple[str, bool, bool]:
  return rref.owner_name(), rref.is_owner(), rref.confirmed_by_owner()

def local(rref: RRef[Tensor]) -> Tensor:
  return rref.local_value()

def same(rref: RRef[Tensor]) -> RRef[Tensor]:
  return rref

def number(rref: RRef[int]) -> int:
  return rref.to_here() + 1

def far_sync(worker: str, x: Tensor) -> Tensor:
  return rpc.rpc_sync(worker, twice, (x,)) + 1

def far_async(worker: str, x: Tensor) -> Tensor:
  first = rpc.rpc_async(worker, twice, (x, 3))
  second = rpc.rpc_async(worker, twice, (x,), {"times": 5})
  return first.wait() + second.wait()

def far_remote(worker: str, x: Tensor) -> RRef[Tensor]:
  return rpc.remote(worker, twice, (x,))

def far_remote_fetch(worker: str, x: Tensor) -> Tensor:
  rref = rpc.remote(worker, twice, (x,))
  return rref.to_here()

def hasty(worker: str, x: Tensor) -> Tensor:
  return rpc.rpc_sync(worker, twice, (x,), {}, 0.000001)
)";

class ScriptCalls : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { unit_ = register_script("calls", kCallsSource); }
  ~ScriptCalls() override {
    guard_.reset();
    group_.expect_empty();
  }

  static std::shared_ptr<torch::jit::CompilationUnit> unit_;
  testing::Group group_{3};
  std::optional<AgentGuard> guard_{std::in_place, group_[0]};
};
std::shared_ptr<torch::jit::CompilationUnit> ScriptCalls::unit_;

TEST_F(ScriptCalls, ReferencesAreArgumentsAndResults) {
  const at::Tensor x = at::ones({2});
  const RRef<at::Tensor> here(x);
  const RRef<at::Tensor> there = remote<at::Tensor>("worker1", Script("calls.twice"), x);
  for (const char* worker : {"worker0", "worker1", "worker2"}) {
    EXPECT_TRUE(at::equal(rpc_sync<at::Tensor>(worker, Script("calls.fetch"), here), x + 1)) << worker;
    EXPECT_TRUE(at::equal(rpc_sync<at::Tensor>(worker, Script("calls.fetch"), there), 2 * x + 1)) << worker;
  }
  EXPECT_TRUE(at::equal(rpc_sync<at::Tensor>("worker1", Script("calls.fetch_for"), here, 5.0), x));
  EXPECT_TRUE(at::equal(rpc_sync<at::Tensor>("worker1", Script("calls.fetch_all"),
                                             std::vector<RRef<at::Tensor>>{here, there, here}),
                        4 * x));
  const auto back = rpc_sync<RRef<at::Tensor>>("worker2", Script("calls.same"), here);
  EXPECT_TRUE(back.is_owner());
  EXPECT_TRUE(at::equal(back.to_here(), x));
  EXPECT_EQ(rpc_sync<int64_t>("worker1", Script("calls.number"), RRef<int64_t>(41)), 42);
  // The same as an IValue.
  const c10::IValue held = rpc_sync<c10::IValue>("worker2", Script("calls.same"), there);
  ASSERT_TRUE(held.isRRef());
  EXPECT_EQ(held.toRRef()->ownerName(), "worker1");
  EXPECT_TRUE(at::equal(rpc_sync<at::Tensor>("worker2", Script("calls.fetch"), held), 2 * x + 1));
}

TEST_F(ScriptCalls, ReferencesDescribeThemselves) {
  const RRef<at::Tensor> here(at::ones({2}));
  using Description = std::tuple<std::string, bool, bool>;
  EXPECT_EQ(std::get<0>(rpc_sync<Description>("worker1", Script("calls.describe"), here)), "worker0");
  EXPECT_EQ(rpc_sync<Description>("worker0", Script("calls.describe"), here),
            Description("worker0", true, true));
  EXPECT_TRUE(at::equal(rpc_sync<at::Tensor>("worker0", Script("calls.local"), here), at::ones({2})));
  const absl::Status elsewhere =
      status_of([&] { rpc_sync<at::Tensor>("worker1", Script("calls.local"), here); });
  EXPECT_THAT(std::string(elsewhere.message()), HasSubstr("cannot use local_value on worker \"worker1\""));
}

TEST_F(ScriptCalls, ReferencesOfAnotherTypeAreRefused) {
  const RRef<std::string> text(std::string("text"));
  EXPECT_TRUE(absl::IsInvalidArgument(
      status_of([&] { rpc_sync<at::Tensor>("worker1", Script("calls.fetch"), text); })));
  EXPECT_TRUE(absl::IsInvalidArgument(status_of(
      [&] { rpc_sync<RRef<int64_t>>("worker1", Script("calls.same"), RRef<at::Tensor>(at::ones({2}))); })));
}

TEST_F(ScriptCalls, ScriptsCallOtherWorkers) {
  const at::Tensor x = at::ones({2});
  EXPECT_TRUE(at::equal(rpc_sync<at::Tensor>("worker1", Script("calls.far_sync"), "worker2", x), 2 * x + 1));
  EXPECT_TRUE(at::equal(rpc_sync<at::Tensor>("worker1", Script("calls.far_async"), "worker2", x), 8 * x));
  EXPECT_TRUE(at::equal(rpc_sync<at::Tensor>("worker1", Script("calls.far_async"), "worker1", x), 8 * x));
  const auto rref = rpc_sync<RRef<at::Tensor>>("worker1", Script("calls.far_remote"), "worker2", x);
  EXPECT_EQ(rref.owner_name(), "worker2");
  EXPECT_TRUE(at::equal(rref.to_here(), 2 * x));
  EXPECT_TRUE(
      at::equal(rpc_sync<at::Tensor>("worker1", Script("calls.far_remote_fetch"), "worker2", x), 2 * x));
}

TEST_F(ScriptCalls, TheProgramRunsScriptsThatCall) {
  const at::Tensor x = at::ones({2});
  EXPECT_TRUE(at::equal(unit_->run_method("calls.far_sync", "worker1", x).toTensor(), 2 * x + 1));
  EXPECT_TRUE(at::equal(unit_->run_method("calls.far_async", "worker1", x).toTensor(), 8 * x));
  const c10::IValue rref = unit_->run_method("calls.far_remote", "worker1", x);
  EXPECT_TRUE(at::equal(unit_->run_method("calls.fetch", rref).toTensor(), 2 * x + 1));
}

TEST(ScriptThreads, AScriptThatWaitsKeepsNoThread) {
  // Calls that nest deeper, in a cycle of two workers, than the workers have threads.
  std::string source = "def level0(x: Tensor, here: str, there: str) -> Tensor:\n  return x + 1\n";
  constexpr int kLevels = 12;
  for (int level = 1; level <= kLevels; ++level) {
    absl::StrAppend(&source, "def level", level,
                    "(x: Tensor, here: str, there: str) -> Tensor:\n  return rpc.rpc_async(there, level",
                    level - 1, ", (x, there, here)).wait() + 1\n");
  }
  register_script("levels", source);
  RpcBackendOptions options;
  options.num_worker_threads = 2;
  options.max_worker_threads = 2;
  testing::Group group(3, options);
  AgentGuard guard(group[0]);
  const at::Tensor deepest = rpc_sync<at::Tensor>("worker1", Script(absl::StrCat("levels.level", kLevels)),
                                                  at::zeros({}), "worker1", "worker2");
  EXPECT_EQ(deepest.item<int64_t>(), kLevels + 1);
}

TEST_F(ScriptCalls, ErrorsReachTheCaller) {
  const at::Tensor x = at::ones({2});
  absl::Status status =
      status_of([&] { rpc_sync<at::Tensor>("worker1", Script("calls.far_sync"), "nobody", x); });
  EXPECT_THAT(std::string(status.message()), HasSubstr("nobody"));
  status = status_of([&] { rpc_sync<at::Tensor>("worker1", Script("calls.far_async"), "nobody", x); });
  EXPECT_THAT(std::string(status.message()), HasSubstr("nobody"));
  status = status_of([&] { rpc_sync<at::Tensor>("worker1", Script("calls.hasty"), "worker2", x); });
  EXPECT_FALSE(status.ok());
  status = status_of([] { register_script("wrong", "def f(x: Tensor) -> Tensor:\n  return rpc.call(x)\n"); });
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("expected rpc.rpc_sync, rpc.rpc_async or rpc.remote"));
}

}  // namespace
}  // namespace gradwire::rpc
