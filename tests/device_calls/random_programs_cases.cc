#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/device/streams.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/rpc/testing/group.h"
#include "gradwire/tests/device_calls/device_kind.h"

// Random programs of calls with tensors on devices whose streams run late. Each result is compared bit for
// bit with that of the same program on the CPU. A missing wait, memory that is reused too early, or an event
// that is recorded too early shows as a wrong result, because such memory is poisoned.
namespace gradwire::rpc {
namespace {

using device_kind::on;

at::Tensor combine(const at::Tensor& a, const at::Tensor& b) {
  device_kind::delay(a.device());
  at::Tensor c = a * 2 + b.relu();
  device_kind::delay(a.device());
  return c;
}
GRADWIRE_RPC(combine)

// Calls another worker, and uses the result.
at::Tensor relay(const std::string& to, const at::Tensor& a) { return rpc_sync<&combine>(to, a, a) - a; }
GRADWIRE_RPC(relay)

Future<at::Tensor> relay_later(std::string to, at::Tensor a) {
  Future<at::Tensor> inner = rpc_async<&combine>(to, a, a);
  const at::Tensor b = a * 3;
  at::Tensor result = co_await inner;
  co_return result + b;
}
GRADWIRE_RPC(relay_later)

at::Tensor read(const RRef<at::Tensor>& value) { return value.to_here() + 1; }
GRADWIRE_RPC(read)

struct Cell {
  explicit Cell(at::Tensor first) : value(std::move(first)) {}
  void mix(const at::Tensor& x) { value = value / 2 + x; }
  at::Tensor get() const { return value; }
  at::Tensor value;
};
GRADWIRE_RPC_SERIAL_CLASS(Cell, at::Tensor)
GRADWIRE_RPC_METHOD(Cell, mix)
GRADWIRE_RPC_METHOD(Cell, get)

class Program {
 public:
  Program(const testing::Group& group, uint64_t seed) : group_(group), random_(seed) {
    size_ = below(2) == 0 ? 5 + below(20) : 1000 + below(20'000);
    for (int i = 0; i < 4; ++i) {
      const at::Tensor value = at::randn({size_});
      values_.push_back({on(device(), value), value});
    }
    const at::Tensor first = at::randn({size_});
    cell_ = group_[0]->remote<Cell>(worker(), on(0, first));
    cell_expected_ = first;
  }

  void run(int steps) {
    for (step_ = 1; step_ <= steps; ++step_) step();
    while (!pending_.empty()) settle();
    for (const Value& value : values_) check(value);
    collect(std::move(cells_)).wait();
    check({cell_.rpc_sync<&Cell::get>(), cell_expected_, "a cell"});
  }

 private:
  struct Value {
    at::Tensor on_device;
    at::Tensor expected;
    const char* what = "a start value";
    int step = 0;
  };

  int64_t below(int64_t bound) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(bound)); }
  std::string worker() { return "worker" + std::to_string(below(3)); }
  int device() { return static_cast<int>(below(3)); }
  static void check(const Value& value) {
    const at::Tensor got = value.on_device.cpu();
    ASSERT_TRUE(at::equal(got, value.expected)) << "the value of step " << value.step << ", " << value.what;
  }
  void set(Value& value, at::Tensor on_device, at::Tensor expected, const char* what) {
    value = {std::move(on_device), std::move(expected), what, step_};
  }
  Value& any() { return values_[static_cast<std::size_t>(below(4))]; }
  // The value on the device of another one, as operators want it.
  static at::Tensor beside(const Value& value, const Value& other) {
    return value.on_device.to(other.on_device.device(), /*non_blocking=*/true);
  }

  void step() {
    Value& target = any();
    const Value a = any();
    const Value b = any();
    switch (below(10)) {
      case 0:
        set(target, combine(a.on_device, beside(b, a)), combine(a.expected, b.expected), "a local result");
        break;
      case 1:
        set(target, group_[0]->rpc_sync<&combine>(worker(), a.on_device, beside(b, a)),
            combine(a.expected, b.expected), "the result of a call");
        break;
      case 2: {
        // The argument changes right after the call.
        device_kind::delay(a.on_device.device());
        at::Tensor argument = a.on_device + 1;
        pending_.emplace_back(group_[0]->rpc_async<&combine>(worker(), argument, argument),
                              combine(a.expected + 1, a.expected + 1));
        argument.fill_(-7);
        break;
      }
      case 3: {
        // The argument is given away.
        at::Tensor argument = a.on_device * 5;
        const at::Tensor expected = a.expected * 5;
        pending_.emplace_back(group_[0]->rpc_async<&relay>(worker(), worker(), std::move(argument)),
                              combine(expected, expected) - expected);
        break;
      }
      case 4:
        pending_.emplace_back(group_[0]->rpc_async<&relay_later>(worker(), worker(), a.on_device),
                              combine(a.expected, a.expected) + a.expected * 3);
        break;
      case 5:
        settle();
        break;
      case 6: {
        const RRef<at::Tensor> there = group_[0]->remote<&combine>(worker(), a.on_device, beside(b, a));
        const at::Tensor expected = combine(a.expected, b.expected);
        switch (below(3)) {
          case 0:
            set(target, there.to_here(), expected, "to_here");
            break;
          case 1:
            set(target, group_[0]->rpc_sync<&read>(worker(), there), expected + 1, "a passed reference");
            break;
          default:
            set(target, there.rpc_sync<at::Tensor>(Op("aten::mul"), 2), expected * 2,
                "an operator on a reference");
        }
        break;
      }
      case 7:
        // Asynchronous calls arrive in any order, so only the last one may be under way.
        if (!cells_.empty()) cells_.back().wait();
        cells_.push_back(cell_.rpc_async<&Cell::mix>(a.on_device.to(device_kind::device(0), true)));
        cell_expected_ = cell_expected_ / 2 + a.expected;
        break;
      case 8: {
        // Other streams of this thread, which wait for the present ones.
        const c10::Device device = a.on_device.device();
        const c10::Stream main = device::current_stream(device);
        const c10::Stream side = device_kind::new_stream(device.index());
        device::order(main, side);
        a.on_device.record_stream(side);
        at::Tensor result;
        {
          const c10::StreamGuard guard(side);
          result = group_[0]->rpc_sync<&combine>(worker(), a.on_device, a.on_device);
        }
        device::order(side, main);
        result.record_stream(main);
        set(target, std::move(result), combine(a.expected, a.expected),
            "the result of a call on another stream");
        break;
      }
      default:
        // Frees memory, and takes it again.
        target = {};
        set(target, at::zeros({size_}, at::TensorOptions().device(a.on_device.device())), at::zeros({size_}),
            "zeros");
    }
  }

  void settle() {
    if (pending_.empty()) return;
    auto [future, expected] = std::move(pending_.back());
    pending_.pop_back();
    set(any(), future.wait(), expected, "the result of an asynchronous call");
  }

  const testing::Group& group_;
  std::mt19937_64 random_;
  int64_t size_ = 0;
  int step_ = 0;
  std::vector<Value> values_;
  std::vector<std::pair<Future<at::Tensor>, at::Tensor>> pending_;
  std::vector<Future<void>> cells_;
  RRef<Cell> cell_;
  at::Tensor cell_expected_;
};

// GRADWIRE_DEVICE_PROGRAMS: how many programs run for each channel.
int programs() {
  const char* number = std::getenv("GRADWIRE_DEVICE_PROGRAMS");
  return number == nullptr ? 60 : std::atoi(number);
}

class RandomPrograms : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Channels, RandomPrograms, ::testing::Values("local", "ipc", "host"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(RandomPrograms, EqualTheCpuBitForBit) {
  RpcBackendOptions options;
  options.channels = {GetParam()};
  testing::Group group(3, options);
  // The tensors of a program make about 20 ways between workers.
  std::shared_ptr<void> ipc;
  if (options.channels.front() == "ipc") ipc = device_kind::expect_ipc(group, 5 * programs());
  for (int seed = 0; seed < programs(); ++seed) {
    SCOPED_TRACE(seed);
    device_kind::begin(static_cast<uint64_t>(seed));
    Program(group, static_cast<uint64_t>(seed)).run(30);
    if (HasFatalFailure()) break;
  }
  ipc = nullptr;
  group.expect_empty();
  group.shut_down();
}

}  // namespace
}  // namespace gradwire::rpc
