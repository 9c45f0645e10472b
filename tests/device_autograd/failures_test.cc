// Tests passes during which a device is lost or runs out of memory: backward() fails with one error that
// names the worker, the pass ends on all workers, and they go on.
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>

#include "gradwire/base/error.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/tests/device_autograd/device_layers.h"

namespace gradwire::autograd {
namespace {

using at::Tensor;
using rpc::RRef;
using ::testing::HasSubstr;

constexpr std::size_t kCapacity = std::size_t{1} << 30;

// The accident that happens to lag:1 in the middle of a pass.
enum class Accident : int64_t { kNone, kLost, kFull };

void happen(Accident accident) {
  if (accident == Accident::kLost) lag::lose(1, "fell off the bus");
  if (accident != Accident::kFull) return;
  // Memory that was freed is cached when its streams are done.
  lag::synchronize_all();
  lag::set_capacity(1, 1 << 20);
}

class Risky {
 public:
  explicit Risky(const std::string& place) : weight_(leaf_on(place, at::ones({1000, 1000}))) {}

  // The accident happens in the backward, before the gradient of `weight_` is computed.
  Tensor forward(const Tensor& x, int64_t accident) {
    const Tensor y = moved(x, weight_.device()) * weight_ * 2;
    y.register_hook([accident](const Tensor&) { happen(static_cast<Accident>(accident)); });
    return moved(y.sum(), x.device());
  }
  Tensor through(const Tensor& x, const RRef<Risky>& next, int64_t accident) {
    return next.rpc_sync<&Risky::forward>(x * 2, accident) + forward(x, 0);
  }

 private:
  const Tensor weight_;
};
GRADWIRE_RPC_CLASS(Risky, std::string)
GRADWIRE_RPC_METHOD(Risky, forward)
GRADWIRE_RPC_METHOD(Risky, through)

// The parameter: the channel.
class DeviceFailures : public ::testing::TestWithParam<const char*> {
 protected:
  DeviceFailures() : guard_(group_[0]) { lag::set_lag({}); }
  ~DeviceFailures() override {
    lag::restore(1);
    lag::set_capacity(1, kCapacity);
    risky_.clear();
    group_.expect_empty();
  }

  void make(const std::string& first, const std::string& second) {
    risky_.push_back(rpc::remote<Risky>("worker1", first));
    risky_.push_back(rpc::remote<Risky>("worker2", second));
  }
  // Runs a pass over the three workers, from a tensor on `place`. Returns its error.
  absl::Status run(const std::string& place, Accident accident) {
    const Tensor x = leaf_on(place, at::ones({1000, 1000}));
    const Context context;
    const Tensor loss = risky_[0].rpc_sync<&Risky::through>(x, risky_[1], static_cast<int64_t>(accident));
    lag::synchronize_all();
    return status_of([&] { backward(context, {loss}, {.timeout = absl::Seconds(30)}); });
  }

  const NothingLeft after_the_group_;
  rpc::testing::Group group_{3, with_channel(GetParam())};
  const std::shared_ptr<lag::IpcTravel> ipc_ = lag::IpcTravel::by(GetParam(), group_);
  const rpc::AgentGuard guard_;
  std::vector<RRef<Risky>> risky_;
};
INSTANTIATE_TEST_SUITE_P(Channels, DeviceFailures, ::testing::Values("local", "ipc", "host"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(DeviceFailures, ALostDeviceEndsThePassWithTheWorkersName) {
  make("lag:0", "lag:1");
  const absl::Status lost = run("lag:0", Accident::kLost);
  EXPECT_EQ(lost.code(), absl::StatusCode::kInternal) << lost;
  EXPECT_THAT(std::string(lost.message()), HasSubstr("fell off the bus"));
  EXPECT_EQ(worker_of(lost), "worker2");
  // Workers go on with the CPU, and with the other devices.
  std::vector<RRef<Risky>> on_device = std::move(risky_);
  risky_.clear();
  make("cpu", "lag:0");
  EXPECT_EQ(run("cpu", Accident::kNone), absl::OkStatus());
  lag::restore(1);
  risky_ = std::move(on_device);
  EXPECT_EQ(run("lag:0", Accident::kNone), absl::OkStatus());
}

TEST_P(DeviceFailures, ALostDeviceOfTheRootEndsThePass) {
  make("lag:0", "cpu");
  absl::Status lost;
  {
    const Tensor x = leaf_on("lag:1", at::ones({100, 100}));
    const Tensor big = leaf_on("lag:0", at::ones({1000, 1000}));
    const Context context;
    const Tensor y = x * 2;
    y.register_hook([](const Tensor&) { happen(Accident::kLost); });
    const int64_t none = static_cast<int64_t>(Accident::kNone);
    const Tensor loss =
        risky_[0].rpc_sync<&Risky::through>(big, risky_[1], none) + moved(y.sum(), lag::device(0));
    lost = status_of([&] { backward(context, {loss}, {.timeout = absl::Seconds(30)}); });
  }
  EXPECT_EQ(lost.code(), absl::StatusCode::kInternal) << lost;
  EXPECT_THAT(std::string(lost.message()), HasSubstr("fell off the bus"));
  EXPECT_EQ(worker_of(lost), "worker0");
  EXPECT_EQ(run("cpu", Accident::kNone), absl::OkStatus());
  lag::restore(1);
}

// The gradient of the root, and with grad_roots its delivery, need the device that is lost.
TEST_P(DeviceFailures, ADeviceThatIsLostBeforeThePassFailsItWithTheWorkersName) {
  // The graph is on one worker.
  if (ipc_ != nullptr) ipc_->expect_at_least(0);
  make("lag:0", "cpu");
  const Tensor x = leaf_on("lag:1", at::ones({10}));
  const Tensor ones = leaf_on("lag:1", at::ones({10})).detach();
  const Context context;
  const Tensor y = x * 2 + x.square();
  const Tensor sum = y.sum();
  lag::synchronize_all();
  lag::lose(1, "fell off the bus");
  for (const bool given : {false, true}) {
    BackwardOptions options;
    options.timeout = absl::Seconds(30);
    if (given) options.grad_roots = {ones};
    const absl::Status lost = status_of([&] { backward(context, {given ? y : sum}, options); });
    EXPECT_EQ(worker_of(lost), "worker0") << lost;
    EXPECT_THAT(std::string(lost.message()), HasSubstr("fell off the bus"));
  }
}

TEST_P(DeviceFailures, ADeviceOutOfMemoryEndsThePassAndTheNextOneRuns) {
  make("lag:0", "lag:1");
  const absl::Status full = run("lag:0", Accident::kFull);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
  EXPECT_EQ(worker_of(full), "worker2");
  lag::set_capacity(1, kCapacity);
  EXPECT_EQ(run("lag:0", Accident::kNone), absl::OkStatus());
}

}  // namespace
}  // namespace gradwire::autograd
