// Runs random graphs on simulated accelerators, whose streams run late at random, and compares the gradients
// bit for bit with those of libtorch's engine.
#include <c10/core/StreamGuard.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/autograd/graph/gradients.h"
#include "gradwire/autograd/graph/local_executor.h"
#include "gradwire/device/streams.h"
#include "gradwire/tests/device/lag_device.h"
#include "gradwire/tests/device/lag_expect.h"
#include "gtest/gtest.h"

namespace gradwire::autograd {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

const rpc::Id kPassOnDevices{1, 1};
constexpr uint64_t kReceiver = 2;
constexpr int kDevices = 2;
constexpr int kStreams = 3;

// The default stream and two others of each device.
const std::vector<std::vector<c10::Stream>>& streams() {
  static const auto* const all = [] {
    auto* made = new std::vector<std::vector<c10::Stream>>;
    for (int i = 0; i < kDevices; ++i) {
      made->push_back({lag::default_stream(i), lag::new_stream(i), lag::new_stream(i)});
    }
    return made;
  }();
  return *all;
}

// A device and one of its streams; the CPU has no stream.
struct Place {
  at::Device device = at::kCPU;
  std::optional<c10::Stream> stream;
};

// A tensor that is ready on the stream of its place.
struct Value {
  Tensor tensor;
  Place place;
};

enum class Placement { kCpu, kOneDevice, kTwoDevices, kMixed };

// A graph, and the gradients that enter it.
struct RandomGraph {
  Tensors leaves;
  Tensor loss;
  // The tensors that were sent, with their gradients on the CPU: the outputs of views for libtorch's engine,
  // the send nodes for LocalExecutor.
  Tensors sent;
  std::vector<std::shared_ptr<SendNode>> nodes;
  std::vector<at::Device> sent_devices;
  Tensors sent_gradients;
  // The copies from or to the CPU. The host waits for each.
  int host_copies = 0;
};

// Builds a random graph. The same seed gives the same graph and the same numbers, wherever the tensors are.
class Builder {
 public:
  // `like`: where the tensors would be. With `on_cpu` they are all on the CPU.
  Builder(uint64_t seed, Placement like, bool on_cpu) : random_(seed), like_(like), on_cpu_(on_cpu) {
    torch::manual_seed(seed);
  }

  RandomGraph build() {
    for (int i = 0; i < 3; ++i) add_leaf();
    const uint64_t steps = 8 + draw(10);
    for (uint64_t i = 0; i < steps; ++i) step(i);
    const Place place = draw_place();
    Tensor loss;
    for (std::size_t i = 0; i < 3; ++i) {
      const Tensor part = bring(values_[values_.size() - 1 - i], place);
      const auto guard = guard_of(place);
      loss = loss.defined() ? loss + part.sum() : part.sum();
    }
    graph_.loss = loss;
    return std::move(graph_);
  }

 private:
  uint64_t draw(uint64_t n) { return random_() % n; }

  Place draw_place() {
    const uint64_t where = draw(10);
    const uint64_t stream = draw(kStreams);
    const bool cpu = like_ == Placement::kCpu || (like_ == Placement::kMixed && where < 2);
    const int index = like_ != Placement::kOneDevice && where >= 6 ? 1 : 0;
    if (cpu) return {at::kCPU, std::nullopt};
    return {lag::device(index), streams()[static_cast<std::size_t>(index)][engine_ ? 0 : stream]};
  }

  c10::OptionalStreamGuard guard_of(const Place& place) const {
    return on_cpu_ ? c10::OptionalStreamGuard() : c10::OptionalStreamGuard(place.stream);
  }

  // Returns the value at another place, ready on its stream. On the CPU a copy stands for a change of device,
  // so that the graph has the same nodes.
  Tensor bring(const Value& value, const Place& to) {
    const bool moves = value.place.device != to.device;
    if (on_cpu_) return moves ? value.tensor.clone() : value.tensor;
    const auto guard = guard_of(to);
    const auto source = moves ? guard_of(value.place) : c10::OptionalStreamGuard();
    if (!moves) {
      if (to.stream) {
        device::order(*value.place.stream, *to.stream);
        device::record_use(value.tensor, *to.stream);
      }
      return value.tensor;
    }
    graph_.host_copies += value.place.device.is_cpu() || to.device.is_cpu() ? 1 : 0;
    return value.tensor.to(to.device);
  }

  void add_leaf() {
    const Place place = draw_place();
    Tensor leaf = torch::randn({4, 4});
    if (!on_cpu_) {
      const auto guard = guard_of(place);
      leaf = leaf.to(place.device);
    }
    leaf.requires_grad_();
    graph_.leaves.push_back(leaf);
    values_.push_back({leaf, place});
  }

  void step(uint64_t number) {
    const Value& a = values_[values_.size() - 1 - draw(std::min<uint64_t>(values_.size(), 4))];
    const Value& b = values_[draw(values_.size())];
    const uint64_t kind = draw(10);
    const Place place = draw_place();
    if (kind == 0) return add_leaf();
    if (kind == 1) return send(a, number + 1);
    const Tensor x = bring(a, place);
    const Tensor y = kind < 7 ? bring(b, place) : Tensor();
    const auto guard = guard_of(place);
    Tensor result;
    switch (kind) {
      case 2:
      case 3:
        result = x + y;
        break;
      case 4:
        result = x * y.tanh();
        break;
      case 5:
        result = x.tanh().mm(y) * 0.3;
        break;
      case 6:
        result = torch::cat({x.narrow(0, 0, 2), y.narrow(0, 1, 2)}).t();
        break;
      case 7:
        result = x.sin();
        break;
      case 8:
        result = x + x.mean(0, true);
        break;
      default:
        result = x * 0.7;
        result.register_hook([](const Tensor& gradient) { return gradient * 1.25; });
        break;
    }
    values_.push_back({result, place});
  }

  // The node of a sent tensor is as old as its view, so both engines add its gradient at the same position.
  void send(const Value& value, uint64_t message) {
    const auto guard = guard_of(value.place);
    if (like_ == Placement::kCpu || on_cpu_ || engine_) {
      graph_.sent.push_back(value.tensor.view_as(value.tensor));
    } else {
      graph_.nodes.push_back(std::make_shared<SendNode>(
          kPassOnDevices, message, kReceiver,
          torch::autograd::edge_list{torch::autograd::impl::gradient_edge(value.tensor)}));
    }
    graph_.sent_devices.push_back(on_cpu_ ? at::Device(at::kCPU) : value.place.device);
    graph_.sent_gradients.push_back(torch::randn({4, 4}));
  }

 public:
  // Builds for libtorch's engine, with the default streams only: it may add in place what another stream
  // reads.
  Builder& for_engine() {
    engine_ = true;
    return *this;
  }

 private:
  std::mt19937_64 random_;
  const Placement like_;
  const bool on_cpu_;
  bool engine_ = false;
  std::vector<Value> values_;
  RandomGraph graph_;
};

Tensors to_cpu(Tensors tensors) {
  for (Tensor& each : tensors) {
    if (each.defined()) each = each.cpu();
  }
  return tensors;
}

Tensors run_engine(RandomGraph graph) {
  Tensors roots{graph.loss};
  Tensors gradients{torch::ones_like(graph.loss)};
  for (std::size_t i = 0; i < graph.sent.size(); ++i) {
    roots.push_back(graph.sent[i]);
    gradients.push_back(graph.sent_gradients[i].to(graph.sent_devices[i], /*non_blocking=*/true));
  }
  return to_cpu(torch::autograd::grad(roots, graph.leaves, gradients, /*retain_graph=*/false,
                                      /*create_graph=*/false, /*allow_unused=*/true));
}

// Runs every event of the pass with other current streams, as if it ran on another thread.
class Runner {
 public:
  Runner(uint64_t seed, RandomGraph graph)
      : random_(seed), graph_(std::move(graph)), executor_({.context = kPassOnDevices}) {}

  Tensors run() {
    torch::AutoGradMode mode(false);
    EXPECT_TRUE(executor_.mark_roots({torch::autograd::impl::gradient_edge(graph_.loss)}).ok());
    std::vector<std::size_t> events;
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      EXPECT_TRUE(executor_.mark_outputs(graph_.nodes[i], {0}).ok());
      events.push_back(i);
    }
    events.push_back(kRoot);
    std::shuffle(events.begin(), events.end(), random_);
    const int64_t waits = lag::counts().host_waits;
    for (std::size_t event : events) {
      deliver(event);
      while (random_() % 4 != 0 && run_one()) {
      }
    }
    while (run_one()) {
    }
    host_waits_ = lag::counts().host_waits - waits;
    executor_.streams().order_before_current_streams();
    return to_cpu(gradients_.hand_out(graph_.leaves));
  }
  int64_t host_waits() const { return host_waits_; }

 private:
  static constexpr std::size_t kRoot = ~std::size_t{0};

  std::vector<c10::Stream> draw_streams() {
    std::vector<c10::Stream> drawn;
    for (const auto& of_device : streams()) drawn.push_back(of_device[random_() % kStreams]);
    return drawn;
  }

  void deliver(std::size_t event) {
    const c10::MultiStreamGuard guard(draw_streams());
    if (event == kRoot) {
      EXPECT_TRUE(executor_.deliver_roots({torch::ones_like(graph_.loss)}).ok());
      return;
    }
    const Tensor gradient =
        graph_.sent_gradients[event].to(graph_.sent_devices[event], /*non_blocking=*/true);
    EXPECT_TRUE(executor_.deliver_message(graph_.nodes[event]->message(), {gradient}).ok());
  }

  bool run_one() {
    const c10::MultiStreamGuard guard(draw_streams());
    std::optional<LocalExecutor::Task> task = executor_.next();
    if (!task) return false;
    const absl::Status status = executor_.run(*task);
    EXPECT_TRUE(status.ok()) << status;
    {
      const c10::OptionalStreamGuard current(task->stream());
      for (auto& [tensor, gradient] : task->kept) accumulate(gradients_, tensor, std::move(gradient));
    }
    executor_.finished(*task);
    return true;
  }

  std::mt19937_64 random_;
  RandomGraph graph_;
  LocalExecutor executor_;
  Gradients gradients_;
  int64_t host_waits_ = 0;
};

bool equal_bits(const Tensor& a, const Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  if (!a.device().is_cpu() || a.sizes() != b.sizes()) return false;
  const Tensor x = a.contiguous(), y = b.contiguous();
  return std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

void expect_same(const Tensors& got, const Tensors& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(equal_bits(got[i], want[i])) << what << ", leaf " << i << "\n" << got[i] << "\n" << want[i];
  }
}

void run_random_graphs(Placement placement, uint64_t graphs) {
  for (uint64_t seed = 1; seed <= graphs && !::testing::Test::HasFailure(); ++seed) {
    const std::string what = "seed " + std::to_string(seed);
    lag::set_lag(lag::Profile::seeded(seed));
    const Tensors want = run_engine(Builder(seed, placement, /*on_cpu=*/true).build());
    RandomGraph graph = Builder(seed, placement, /*on_cpu=*/false).build();
    const int host_copies = graph.host_copies;
    Runner runner(seed, std::move(graph));
    expect_same(runner.run(), want, what);
    // Only a copy from or to the CPU makes the host wait.
    EXPECT_LE(runner.host_waits(), host_copies) << what;
    // With two devices libtorch's engine has two threads, so it adds in any order.
    if (placement == Placement::kOneDevice) {
      expect_same(run_engine(Builder(seed, placement, /*on_cpu=*/false).for_engine().build()), want,
                  what + ", libtorch's engine");
    }
  }
  lag::synchronize_all();
  lag::expect_nothing_left();
}

TEST(LocalExecutorDevice, RandomGraphsOnOneDeviceGiveTheBitsOfLibtorch) {
  run_random_graphs(Placement::kOneDevice, 200);
}

TEST(LocalExecutorDevice, RandomGraphsOnTwoDevicesGiveTheBitsOfLibtorch) {
  run_random_graphs(Placement::kTwoDevices, 200);
}

TEST(LocalExecutorDevice, RandomGraphsOnCpuAndDevicesGiveTheBitsOfLibtorch) {
  run_random_graphs(Placement::kMixed, 200);
}

// The streams of both devices are busy until all has been shipped, so a result that is not ordered would be
// read before it is there.
TEST(LocalExecutorDevice, RecvNodeShipsOnTheCurrentStreamsOfSeveralDevices) {
  Tensors results;
  std::vector<Tensor> sources;
  {
    auto node = std::make_shared<RecvNode>(kPassOnDevices, 0, rpc::Worker{"peer", 1, kReceiver}, 7);
    Tensors received;
    std::vector<c10::Stream> side{streams()[0][1], streams()[1][1]};
    std::deque<lag::StreamHold> holds;
    Tensors losses;
    {
      const c10::MultiStreamGuard guard(side);
      for (int i = 0; i < kDevices; ++i) {
        sources.push_back(torch::randn({8}));
        received.push_back(sources.back().to(lag::device(i)));
      }
      set_outputs(node, {&received[0], &received[1]});
      for (Tensor& each : received) {
        each.register_hook([](const Tensor& gradient) { return gradient * 2; });
        losses.push_back(each.sin().sum());
      }
    }
    for (const c10::Stream& stream : side) holds.emplace_back(stream);
    torch::AutoGradMode mode(false);
    LocalExecutor executor({.context = kPassOnDevices});
    torch::autograd::edge_list roots;
    for (const Tensor& loss : losses) roots.push_back(torch::autograd::impl::gradient_edge(loss));
    ASSERT_TRUE(executor.mark_roots(roots).ok());
    ASSERT_TRUE(executor.deliver_roots({torch::ones_like(losses[0]), torch::ones_like(losses[1])}).ok());
    const int64_t waits = lag::counts().host_waits;
    while (std::optional<LocalExecutor::Task> task = executor.next()) {
      ASSERT_TRUE(executor.run(*task).ok());
      if (task->recv != nullptr) {
        const c10::OptionalStreamGuard current(task->stream());
        for (const Tensor& gradient : task->outputs) results.push_back(gradient * 1);
        executor.streams().order_before_current_streams();
      }
      executor.finished(*task);
    }
    EXPECT_EQ(lag::counts().host_waits, waits);
  }
  ASSERT_EQ(results.size(), 2u);
  lag::synchronize_all();
  for (std::size_t i = 0; i < results.size(); ++i) {
    EXPECT_TRUE(equal_bits(results[i].cpu(), sources[i].cos() * 2 * 1)) << i;
  }
}

TEST(Gradients, SumOfTwoPassesIsReadyForAReaderOnAnotherStream) {
  const c10::Stream first = streams()[0][1], second = streams()[0][2];
  Gradients gradients;
  Tensor variable, sum;
  const Tensor a = torch::randn({8}), b = torch::randn({8});
  {
    torch::NoGradGuard no_graph;
    variable = torch::zeros({8}).to(lag::device(0));
    const lag::StreamHold hold(first);
    {
      const c10::StreamGuard guard(first);
      accumulate(gradients, variable, a.to(lag::device(0), true));
    }
    {
      const c10::StreamGuard guard(second);
      accumulate(gradients, variable, b.to(lag::device(0), true));
    }
    sum = gradients.hand_out().at(variable) * 1;
  }
  EXPECT_TRUE(equal_bits(sum.cpu(), a + b));
}

// The reader has dropped its tensor on the host, so the sum is changed in place, but the reader's stream has
// not read it.
TEST(Gradients, SumWaitsForAReaderWhoseStreamIsBehind) {
  const c10::Stream writer = streams()[0][1], reader = streams()[0][2];
  Gradients gradients;
  torch::NoGradGuard no_graph;
  const Tensor variable = torch::zeros({8}).to(lag::device(0));
  const Tensor a = torch::randn({8}), b = torch::randn({8});
  Tensor read;
  {
    const c10::StreamGuard guard(writer);
    accumulate(gradients, variable, a.to(lag::device(0), true));
  }
  {
    const lag::StreamHold hold(reader);
    {
      const c10::StreamGuard guard(reader);
      read = gradients.hand_out({variable})[0] * 1;
    }
    const c10::StreamGuard guard(writer);
    accumulate(gradients, variable, b.to(lag::device(0), true));
  }
  lag::synchronize_all();
  EXPECT_TRUE(equal_bits(read.cpu(), a));
  EXPECT_TRUE(equal_bits(gradients.hand_out().at(variable).cpu(), a + b));
}

// The allocator of the device reuses memory in the order of the stream that it was allocated on.
TEST(Gradients, MemoryIsNotReusedBeforeAReaderHasReadIt) {
  const c10::Stream writer = streams()[0][1], reader = streams()[0][2];
  torch::NoGradGuard no_graph;
  const Tensor variable = torch::zeros({8}).to(lag::device(0));
  const Tensor a = torch::randn({8});
  Tensor read;
  {
    const lag::StreamHold hold(reader);
    Gradients gradients;
    {
      const c10::StreamGuard guard(writer);
      accumulate(gradients, variable, a.to(lag::device(0), true));
    }
    {
      const c10::StreamGuard guard(reader);
      read = gradients.hand_out({variable})[0] * 1;
    }
    gradients = Gradients();
    const c10::StreamGuard guard(writer);
    for (int i = 0; i < 8; ++i) torch::randn({8}).to(lag::device(0));
  }
  lag::synchronize_all();
  EXPECT_TRUE(equal_bits(read.cpu(), a));
}

}  // namespace
}  // namespace gradwire::autograd
