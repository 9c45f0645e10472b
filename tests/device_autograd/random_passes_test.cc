// Runs random programs over three workers, whose tensors are on the CPU and on simulated accelerators with
// streams that run late. Each gradient must have the bits that libtorch's engine computes for the same
// program in one process on the CPU, and must be on the device of its tensor.
#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/autograd/autograd.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/rpc/testing/group.h"
#include "gradwire/tests/device/ipc_travel.h"
#include "gradwire/tests/device/lag_device.h"
#include "gradwire/tests/device/lag_expect.h"

namespace gradwire::autograd {
namespace {

using at::Tensor;

constexpr int kWorkers = 3;
constexpr int kLeaves = 2;
// Blocks call others down to this depth.
constexpr int64_t kDepth = 2;

std::string name_of(int worker) { return "worker" + std::to_string(worker); }

// A tensor, and its device in the run on devices. In the run on the CPU the tensor is on the CPU.
struct Value {
  Tensor tensor;
  c10::Device device = at::kCPU;
};

// One run of a program. Each worker uses its own leaves only.
struct Site {
  bool on_cpu = false;
  std::vector<Value> leaves[kWorkers];
  // The device map of each worker for each other one. Empty: devices of the same name.
  rpc::DeviceMap maps[kWorkers][kWorkers];

  c10::Device there(int from, int to, c10::Device device) const {
    for (const auto& [here, mapped] : maps[from][to]) {
      if (c10::Device(here) == device) return c10::Device(mapped);
    }
    return device;
  }
  c10::Device back(int from, int to, c10::Device device) const {
    for (const auto& [here, mapped] : maps[from][to]) {
      if (c10::Device(mapped) == device) return c10::Device(here);
    }
    return device;
  }
};

// The site of the run in progress. Handlers of all workers are in this process; there is one run at a time.
Site* site = nullptr;

// A copy with the strides of a received tensor. It stands for a message, and for a copy between devices.
Tensor dense_copy(const Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() ? tensor.clone() : tensor.clone(at::MemoryFormat::Contiguous);
}
Tensor received(const Tensor& tensor) {
  Tensor copy = dense_copy(tensor);
  if (copy.requires_grad()) copy.register_hook([](const Tensor& gradient) { return dense_copy(gradient); });
  return copy;
}

std::vector<Tensor> run_block(int64_t seed, int64_t depth, const std::vector<Tensor>& arguments);
Future<std::vector<Tensor>> run_relay(std::string to, int64_t seed, int64_t depth,
                                      std::vector<Tensor> arguments);

// The body of a handler, or the main program. The seed determines it.
class Block {
 public:
  Block(int64_t seed, int64_t depth, int worker, std::vector<Value> arguments)
      : random_(static_cast<uint64_t>(seed)), depth_(depth), worker_(worker), values_(std::move(arguments)) {}

  // Returns two results.
  std::vector<Value> run() {
    while (values_.size() < 2) add_leaf();
    const uint64_t steps = 3 + draw(6);
    for (uint64_t i = 0; i < steps; ++i) step();
    while (!pending_.empty()) settle();
    return {values_.back(), values_[draw(values_.size())]};
  }

  c10::Device draw_place() {
    const uint64_t where = draw(5);
    return where < 2 ? c10::Device(at::kCPU) : lag::device(static_cast<int>(where) - 2);
  }
  Tensor bring(const Value& value, c10::Device place) const {
    if (value.device == place) return value.tensor;
    if (site->on_cpu) return received(value.tensor);
    return value.tensor.to(place, /*non_blocking=*/!place.is_cpu());
  }

 private:
  uint64_t draw(uint64_t n) { return random_() % n; }
  const Value& any() { return values_[values_.size() - 1 - draw(std::min<uint64_t>(values_.size(), 4))]; }
  void add_leaf() { values_.push_back(site->leaves[worker_][draw(kLeaves)]); }

  void step() {
    const uint64_t kind = draw(depth_ < kDepth ? 14 : 9);
    const Value a = any();
    const Value b = any();
    const c10::Device place = draw_place();
    if (kind == 0) return add_leaf();
    if (kind >= 9) return call(kind, {a, b});
    const Tensor x = bring(a, place);
    const Tensor y = kind < 5 ? bring(b, place) : Tensor();
    Tensor result;
    switch (kind) {
      case 1:
        result = x + y;
        break;
      case 2:
        result = x * y.tanh();
        break;
      case 3:
        result = x.tanh().mm(y) * 0.3;
        break;
      case 4:
        result = at::cat({x.narrow(0, 0, 2), y.narrow(0, 2, y.size(0) - 2)});
        break;
      case 5:
        result = x.sin();
        break;
      case 6:
        result = x + x.mean(0, true);
        break;
      case 7:
        result = x * 0.7;
        if (result.requires_grad()) {
          result.register_hook([](const Tensor& gradient) { return gradient * 1.25; });
        }
        break;
      default:
        result = x.t() * x;
        break;
    }
    values_.push_back({result, place});
  }

  void call(uint64_t kind, const std::vector<Value>& arguments) {
    const int to = static_cast<int>(draw(kWorkers));
    const int next = static_cast<int>(draw(kWorkers));
    const auto seed = static_cast<int64_t>(random_() >> 1);
    // A receiver may change what it got. The owner of a reference gets the value itself.
    const bool fetches_own = kind == 13 && to == worker_;
    const bool changes = draw(3) == 0 && !fetches_own;
    Pending pending{{}, {}, changes};
    if (site->on_cpu) {
      pending.results = kind == 12 ? relay_here(to, next, seed, arguments)
                                   : call_here(worker_, to, seed, arguments, !fetches_own);
    } else {
      std::vector<Tensor> tensors;
      for (const Value& each : arguments) tensors.push_back(each.tensor);
      const std::string worker = name_of(to);
      if (kind == 12) {
        pending.future = rpc::rpc_async<&run_relay>(worker, name_of(next), seed, depth_ + 1, tensors);
      } else if (kind == 13) {
        pending.future = rpc::remote<&run_block>(worker, seed, depth_ + 1, tensors).to_here_async();
      } else {
        pending.future = rpc::rpc_async<&run_block>(worker, seed, depth_ + 1, tensors);
      }
    }
    pending_.push_back(std::move(pending));
    // Half of the calls go on beside later steps.
    if (kind % 2 == 0) settle();
  }

  // `answers`: whether the results are sent back.
  std::vector<Value> call_here(int from, int to, int64_t seed, const std::vector<Value>& arguments,
                               bool answers = true) const {
    std::vector<Value> there;
    for (const Value& each : arguments) {
      there.push_back({received(each.tensor), site->there(from, to, each.device)});
    }
    std::vector<Value> results = Block(seed, depth_ + 1, to, there).run();
    if (!answers) return results;
    for (Value& each : results) each = {received(each.tensor), site->back(from, to, each.device)};
    return results;
  }
  std::vector<Value> relay_here(int to, int next, int64_t seed, const std::vector<Value>& arguments) const {
    std::vector<Value> there;
    for (const Value& each : arguments) {
      there.push_back({received(each.tensor), site->there(worker_, to, each.device)});
    }
    std::vector<Value> results = call_here(to, next, seed, there);
    for (Value& each : results) each = {received(each.tensor * 1.5), site->back(worker_, to, each.device)};
    return results;
  }

  void settle() {
    Pending pending = std::move(pending_.back());
    pending_.pop_back();
    if (!site->on_cpu) {
      for (const Tensor& each : pending.future.wait()) pending.results.push_back({each, each.device()});
    }
    for (Value& result : pending.results) {
      if (pending.changes) result.tensor.mul_(0.5);
      values_.push_back(result);
    }
  }

  struct Pending {
    std::vector<Value> results;
    Future<std::vector<Tensor>> future;
    bool changes;
  };

  std::mt19937_64 random_;
  const int64_t depth_;
  const int worker_;
  std::vector<Value> values_;
  std::vector<Pending> pending_;
};

std::vector<Tensor> tensors_of(const std::vector<Value>& values) {
  std::vector<Tensor> tensors;
  for (const Value& each : values) tensors.push_back(each.tensor);
  return tensors;
}

std::vector<Tensor> run_block(int64_t seed, int64_t depth, const std::vector<Tensor>& arguments) {
  std::vector<Value> values;
  for (const Tensor& each : arguments) values.push_back({each, each.device()});
  const int worker = static_cast<int>(rpc::Agent::current()->get_worker_info().id);
  return tensors_of(Block(seed, depth, worker, values).run());
}
GRADWIRE_RPC(run_block)

// Calls another worker and changes its results, on whichever thread gets them.
Future<std::vector<Tensor>> run_relay(std::string to, int64_t seed, int64_t depth,
                                      std::vector<Tensor> arguments) {
  Future<std::vector<Tensor>> inner = rpc::rpc_async<&run_block>(to, seed, depth, arguments);
  std::vector<Tensor> results = co_await inner;
  for (Tensor& each : results) each = each * 1.5;
  co_return results;
}
GRADWIRE_RPC(run_relay)

struct Outcome {
  Tensor loss;
  // Copies on the CPU of the gradients of all leaves.
  std::vector<Tensor> gradients;
};

using Maps = rpc::DeviceMap[kWorkers][kWorkers];

class Program {
 public:
  // `group`: nullptr for the run on the CPU in one process.
  Program(int64_t seed, const Maps& maps, const rpc::testing::Group* group)
      : random_(static_cast<uint64_t>(seed)), seed_(seed), group_(group) {
    site_.on_cpu = group == nullptr;
    for (int i = 0; i < kWorkers; ++i) std::copy(std::begin(maps[i]), std::end(maps[i]), site_.maps[i]);
    at::manual_seed(static_cast<uint64_t>(seed));
    const int64_t size = random_() % 2 == 0 ? 4 : 33;
    for (auto& leaves : site_.leaves) {
      for (int i = 0; i < kLeaves; ++i) {
        const uint64_t where = random_() % 4;
        const c10::Device device = where == 3 ? c10::Device(at::kCPU) : lag::device(static_cast<int>(where));
        Tensor leaf = at::randn({size, size});
        if (group_ != nullptr) leaf = leaf.to(device);
        leaves.push_back({leaf.set_requires_grad(true), device});
      }
    }
    // The workers stand for processes, so the calls of one do not order the work of another.
    lag::synchronize_all();
    site = &site_;
  }
  ~Program() { site = nullptr; }

  Outcome run() {
    if (group_ == nullptr) return run_in(nullptr);
    std::vector<c10::Stream> streams;
    for (int i = 0; i < lag::device_count(); ++i) streams.push_back(lag::new_stream(i));
    const c10::MultiStreamGuard current(streams);
    const rpc::AgentGuard guard((*group_)[0]);
    const Context context;
    return run_in(&context);
  }

 private:
  Outcome run_in(const Context* context) {
    Block block(seed_, 0, 0, {});
    const std::vector<Value> results = block.run();
    const c10::Device place = block.draw_place();
    Tensor loss;
    for (const Value& each : results) {
      const Tensor part = block.bring(each, place).sum();
      loss = loss.defined() ? loss + part : part;
    }
    // A second pass of one in four programs adds to the gradients of the first.
    const bool twice = random_() % 4 == 0;
    backward(context, loss, twice);
    if (twice) backward(context, loss * 0.3, false);
    Outcome outcome{loss.detach().cpu(), {}};
    for (int i = 0; i < kWorkers; ++i) add_gradients(i, context, outcome);
    return outcome;
  }

  static void backward(const Context* context, const Tensor& loss, bool retain_graph) {
    if (context != nullptr) return autograd::backward(*context, {loss}, {.retain_graph = retain_graph});
    torch::autograd::backward({loss}, {}, retain_graph);
  }

  void add_gradients(int worker, const Context* context, Outcome& outcome) const {
    for (const Value& leaf : site_.leaves[worker]) {
      Tensor gradient = leaf.tensor.grad();
      if (context != nullptr) {
        const rpc::AgentGuard guard((*group_)[static_cast<std::size_t>(worker)]);
        try {
          const Gradients all = get_gradients(context->id());
          if (const Tensor* found = all.find(leaf.tensor)) gradient = *found;
        } catch (const Error&) {
          // The context has not reached this worker.
        }
      }
      if (context != nullptr && gradient.defined()) {
        EXPECT_EQ(gradient.device(), leaf.device);
      }
      outcome.gradients.push_back(gradient.defined() ? gradient.cpu() : gradient);
    }
  }

  std::mt19937_64 random_;
  const int64_t seed_;
  const rpc::testing::Group* const group_;
  Site site_;
};

bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.defined() != b.defined() || (a.defined() && a.sizes() != b.sizes())) return false;
  if (!a.defined()) return true;
  const Tensor x = a.contiguous(), y = b.contiguous();
  return std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

// GRADWIRE_DEVICE_PASSES: how many programs run for each group.
int programs() {
  const char* number = std::getenv("GRADWIRE_DEVICE_PASSES");
  return number == nullptr ? 25 : std::atoi(number);
}

void run_programs(const rpc::testing::Group& group, const Maps& maps) {
  int with_gradients = 0;
  for (int seed = 1; seed <= programs() && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    lag::set_lag(lag::Profile::seeded(static_cast<uint64_t>(seed)));
    const Outcome expected = Program(seed, maps, nullptr).run();
    const Outcome got = Program(seed, maps, &group).run();
    EXPECT_TRUE(same_bits(got.loss, expected.loss)) << got.loss << expected.loss;
    ASSERT_EQ(got.gradients.size(), expected.gradients.size());
    for (std::size_t i = 0; i < expected.gradients.size(); ++i) {
      with_gradients += got.gradients[i].defined() ? 1 : 0;
      EXPECT_TRUE(same_bits(got.gradients[i], expected.gradients[i])) << "leaf " << i << "\n"
                                                                      << got.gradients[i] << "\n"
                                                                      << expected.gradients[i];
    }
  }
  EXPECT_GT(with_gradients, programs());
  group.expect_empty();
}

rpc::RpcBackendOptions over_channel(const char* channel) {
  rpc::RpcBackendOptions options;
  options.channels = {channel};
  return options;
}

// The parameter: the channel.
class RandomPasses : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Channels, RandomPasses, ::testing::Values("local", "ipc", "host"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(RandomPasses, GiveTheBitsOfOneProcessOnTheCpu) {
  {
    const rpc::testing::Group group(kWorkers, over_channel(GetParam()));
    const auto ipc = lag::IpcTravel::by(GetParam(), group, lag::IpcTravel::all_devices(), programs());
    run_programs(group, {});
  }
  lag::expect_nothing_left();
}

TEST_P(RandomPasses, GiveTheSameBitsWithDeviceMaps) {
  // Each worker calls the next one, and the one before, by other devices.
  rpc::RpcBackendOptions options = over_channel(GetParam());
  const rpc::DeviceMap turn = {{"cpu", "lag:2"}, {"lag:2", "lag:1"}, {"lag:1", "lag:0"}, {"lag:0", "cpu"}};
  const rpc::DeviceMap swap = {{"cpu", "cpu"}, {"lag:0", "lag:1"}, {"lag:1", "lag:0"}, {"lag:2", "lag:2"}};
  options.set_device_map("worker1", turn);
  options.set_device_map("worker2", swap);
  Maps maps;
  for (auto& from : maps) {
    from[1] = turn;
    from[2] = swap;
  }
  {
    const rpc::testing::Group group(kWorkers, options);
    // By one of the maps, tensors on lag:0 travel to the CPU.
    const auto ipc = lag::IpcTravel::by(GetParam(), group, {1, 2}, programs());
    run_programs(group, maps);
  }
  lag::expect_nothing_left();
}

}  // namespace
}  // namespace gradwire::autograd
