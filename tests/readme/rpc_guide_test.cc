#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/compilation_unit.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <future>
#include <iostream>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/rpc/remote_module.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/rpc/testing/group.h"
#include "gradwire/store/hash_store.h"

// The examples of docs/rpc.md. rpc_guide_text_test.sh checks that this file contains each of them.

using namespace gradwire;       // NOLINT
using namespace gradwire::rpc;  // NOLINT

at::Tensor scale(const at::Tensor& x, double by) { return x * by; }
GRADWIRE_RPC(scale)

double length(const at::Tensor& x) { return x.norm().item<double>(); }
double length(const std::vector<double>& x) { return length(at::tensor(x)); }
inline constexpr auto length_of_vector = static_cast<double (*)(const std::vector<double>&)>(&length);
GRADWIRE_RPC_AS("length_of_vector", length_of_vector)

double mean_of(const at::Tensor& x) { return x.mean().item<double>(); }
GRADWIRE_RPC_IDEMPOTENT(mean_of)

class ParameterServer {
 public:
  explicit ParameterServer(int64_t n) : weights_(at::zeros({n})) {}
  at::Tensor pull() const { return weights_; }
  void push(const at::Tensor& gradient) { weights_ -= 0.1 * gradient; }

 private:
  at::Tensor weights_;
};
GRADWIRE_RPC_SERIAL_CLASS(ParameterServer, int64_t)  // the parameter types of the constructor
GRADWIRE_RPC_METHOD(ParameterServer, pull)
GRADWIRE_RPC_METHOD(ParameterServer, push)
GRADWIRE_RPC_CONSTRUCTOR(ParameterServer, int64_t)

struct NetImpl : torch::nn::Module {
  NetImpl(int64_t in, int64_t out) : linear(register_module("linear", torch::nn::Linear(in, out))) {}
  at::Tensor forward(const at::Tensor& x) { return linear(x).relu(); }
  torch::nn::Linear linear;
};
GRADWIRE_RPC_MODULE(NetImpl, int64_t, int64_t)

double weights_norm(const RRef<ParameterServer>& ps) { return length(ps.rpc_sync<&ParameterServer::pull>()); }
GRADWIRE_RPC(weights_norm)

Future<double> total(RRef<ParameterServer> ps, at::Tensor x) {
  at::Tensor weights = co_await ps.rpc_async<&ParameterServer::pull>();
  at::Tensor y = co_await rpc_async<&scale>("worker1", x, 2.0);
  co_return (weights.sum() + y.sum()).item<double>();
}
GRADWIRE_RPC(total)

class BatchingServer {
 public:
  // Completes when the batch that contains `x` is full and has run.
  Future<at::Tensor> infer(const at::Tensor& x) {
    Promise<at::Tensor> answer;
    std::vector<std::pair<at::Tensor, Promise<at::Tensor>>> batch;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      waiting_.emplace_back(x, answer);
      if (waiting_.size() == kBatch) batch.swap(waiting_);
    }
    if (!batch.empty()) run(batch);  // without the lock: set_value may run code of callers
    return answer.future();
  }

 private:
  static constexpr std::size_t kBatch = 4;
  static void run(const std::vector<std::pair<at::Tensor, Promise<at::Tensor>>>& batch) {
    std::vector<at::Tensor> inputs;
    for (const auto& [input, answer] : batch) inputs.push_back(input);
    const at::Tensor outputs = at::stack(inputs).relu();  // one forward pass for all of them
    for (std::size_t i = 0; i < batch.size(); ++i) batch[i].second.set_value(outputs[i]);
  }

  std::mutex mutex_;
  std::vector<std::pair<at::Tensor, Promise<at::Tensor>>> waiting_;
};
GRADWIRE_RPC_CLASS(BatchingServer)  // never a serial class: see below
GRADWIRE_RPC_METHOD(BatchingServer, infer)

int64_t count_to(int64_t n) {
  int64_t counted = 0;
  while (counted < n && !CallContext::current()->cancelled()) ++counted;
  return counted;
}
GRADWIRE_RPC(count_to)

struct Point {
  double x = 0;
  double y = 0;
};

template <>
struct gradwire::rpc::Codec<Point> {
  static std::string type_name() { return "Point"; }  // the same on both sides
  static absl::Status encode(const Point& point, Encoder& encoder, proto::Value& out) {
    return encode_value<std::pair<double, double>>(std::make_pair(point.x, point.y), encoder, out);
  }
  static absl::StatusOr<Point> decode(const proto::Value& in, Decoder& decoder) {
    GRADWIRE_ASSIGN_OR_RETURN(auto xy, (decode_value<std::pair<double, double>>(in, decoder)));
    return Point{xy.first, xy.second};
  }
};

Point mirror(const Point& point) { return {point.y, point.x}; }
GRADWIRE_RPC(mirror)

namespace {

class Guide : public ::testing::Test {
 protected:
  gradwire::rpc::testing::Group group_{std::vector<std::string>{"ps", "worker0", "worker1"}};
  AgentGuard guard_{group_[1]};
  at::Tensor x = at::ones({3});
};

// Not called, because the host does not exist.
[[maybe_unused]] void serve() {
  gradwire::rpc::init_rpc("ps", 0, 3,
                          {.rpc_timeout = absl::Seconds(10), .init_method = "tcp://ps.example:29500"});
  gradwire::rpc::shutdown();  // serves until every member has called it
}

TEST_F(Guide, CallsAndDestinations) {
  {
    at::Tensor y = rpc_sync<&scale>("worker1", x, 2.0);               // waits for the result
    Future<at::Tensor> later = rpc_async<&scale>("worker1", x, 2.0);  // does not wait
    RRef<at::Tensor> there = remote<&scale>("worker1", x, 2.0);       // the result stays on worker1
    EXPECT_TRUE(at::equal(y, 2 * x));
    EXPECT_EQ(rpc_sync<&mean_of>("worker1", x), 1.0);
    EXPECT_TRUE(at::equal(later.wait(), y));
    EXPECT_TRUE(at::equal(there.to_here(), y));
  }
  {
    rpc_sync<&scale>(2, x, 2.0);                           // by id, which is the rank
    rpc_sync<&scale>(get_worker_info("worker1"), x, 2.0);  // by WorkerInfo
    rpc_sync<&scale>(Destination("worker1").with_timeout(absl::Seconds(5)), x, 2.0);
  }
  {
    const Destination in_order = Destination("worker1").ordered();
    Future<at::Tensor> first = rpc_async<&scale>(in_order, x, 1.0);
    Future<at::Tensor> second = rpc_async<&scale>(in_order, x, 2.0);  // starts after the first has started
    EXPECT_TRUE(at::equal(first.wait() * 2, second.wait()));
  }
  {
    at::Tensor gradient = at::rand({1000, 1000});
    Future<at::Tensor> y = rpc_async<&scale>("worker1", std::move(gradient), 2.0);  // moved: not copied
    EXPECT_EQ(y.wait().numel(), 1000000);
  }
  EXPECT_EQ(rpc_sync<length_of_vector>("worker1", std::vector<double>{3, 4}), 5);
  EXPECT_EQ(rpc_sync<&mirror>("worker1", Point{1, 2}).x, 2);
  EXPECT_EQ(rpc_sync<&count_to>("worker1", 1000), 1000);
}

TEST_F(Guide, ErrorsAndFutures) {
  std::string message;
  {
    try {
      at::Tensor y = rpc_sync<&scale>("worker7", x, 2.0);
    } catch (const Error& error) {
      if (error.status().code() == absl::StatusCode::kNotFound) message = error.what();
    }
    EXPECT_NE(message.find("worker7"), std::string::npos) << message;
  }
  {
    absl::StatusOr<at::Tensor> result = rpc_async<&scale>("worker1", x, 2.0).result();  // waits, never throws
    EXPECT_TRUE(result.ok());
  }
  {
    Future<double> sum =
        rpc_async<&scale>("worker1", x, 2.0).then([](const at::Tensor& y) { return y.sum().item<double>(); });
    std::vector<Future<at::Tensor>> parts;
    for (const char* worker : {"worker0", "worker1"}) parts.push_back(rpc_async<&scale>(worker, x, 2.0));
    std::vector<at::Tensor> all = collect(std::move(parts)).wait();  // the first error wins
    EXPECT_EQ(sum.wait(), 6);
    EXPECT_EQ(all.size(), 2u);
  }
  {
    Future<int64_t> counted = rpc_async<&count_to>("worker1", std::numeric_limits<int64_t>::max());
    counted.cancel();  // ends with Cancelled; the handler is notified
    EXPECT_EQ(counted.result().status().code(), absl::StatusCode::kCancelled);
  }
}

TEST_F(Guide, Batching) {
  RRef<BatchingServer> server = remote<BatchingServer>("worker1");
  std::vector<Future<at::Tensor>> answers;
  for (int i = 0; i < 4; ++i) answers.push_back(server.rpc_async<&BatchingServer::infer>(x - i));
  std::vector<at::Tensor> outputs = collect(std::move(answers)).wait();
  ASSERT_EQ(outputs.size(), 4u);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(at::equal(outputs[static_cast<std::size_t>(i)], (x - i).relu()));
}

TEST_F(Guide, References) {
  at::Tensor gradient = at::ones({1024});
  RRef<ParameterServer> ps = remote<ParameterServer>("ps", 1024);  // constructed on "ps"
  ps.rpc_sync<&ParameterServer::push>(gradient);
  at::Tensor weights = ps.rpc_sync<&ParameterServer::pull>();
  RRef<at::Tensor> remote_weights = ps.remote<&ParameterServer::pull>();
  at::Tensor copy = remote_weights.to_here();
  double n = rpc_sync<&weights_norm>("worker1", ps);  // worker1 uses the reference
  EXPECT_TRUE(at::allclose(weights, -0.1 * gradient));
  EXPECT_TRUE(at::equal(copy, weights));
  EXPECT_NEAR(n, 3.2, 1e-5);
  EXPECT_NEAR(rpc_sync<&total>("worker1", ps, x), -102.4 + 6, 1e-3);
}

TEST_F(Guide, OperatorsAndScripts) {
  {
    at::Tensor y = rpc_sync<at::Tensor>("worker1", Op("aten::add"), x, 3, kw("alpha", 2));  // x + 2 * 3
    RRef<at::Tensor> there = remote<at::Tensor>("worker1", Op("aten::add.Tensor"), x, x);
    at::Tensor row = there.rpc_sync<at::Tensor>(Op("aten::view"), std::vector<int64_t>{1, -1});
    EXPECT_TRUE(at::equal(y, x + 6));
    EXPECT_TRUE(at::equal(row, (x + x).view({1, -1})));
  }
  {
    register_script("math", "def twice(x: Tensor) -> Tensor:\n  return x + x\n");  // on the callee
    c10::IValue z = rpc_sync<c10::IValue>("worker1", Script("math.twice"), x);     // on the caller
    EXPECT_TRUE(at::equal(z.toTensor(), x + x));
  }
  {
    const std::string source = R"(
def twice(x: Tensor) -> Tensor:
  return x + x

def far(worker: str, x: Tensor, there: RRef[Tensor]) -> Tensor:
  later = rpc.rpc_async(worker, twice, (x,))   # a Future[Tensor]
  now = rpc.rpc_sync(worker, twice, (x,))
  kept = rpc.remote(worker, twice, (x,))       # an RRef[Tensor]
  return later.wait() + now + kept.to_here() + there.to_here(5.0)

def keep(worker: str, x: Tensor) -> RRef[Tensor]:
  return rpc.remote(worker, twice, (x,))
)";
    auto unit = register_script("distant", source);  // on all workers; `source` is the text above
    RRef<at::Tensor> there = remote<at::Tensor>("worker1", Script("distant.twice"), x);
    at::Tensor y = rpc_sync<at::Tensor>("worker1", Script("distant.far"), "worker0", x, there);
    auto kept = rpc_sync<RRef<at::Tensor>>("worker1", Script("distant.keep"), "worker0", x);
    EXPECT_TRUE(at::equal(y, 8 * x));
    EXPECT_EQ(kept.owner_name(), "worker0");
    EXPECT_TRUE(at::equal(kept.to_here(), 2 * x));

    c10::IValue held = unit->run_method("distant.keep", "worker1", x);
    at::Tensor z = unit->run_method("distant.far", "worker1", x, held).toTensor();
    EXPECT_TRUE(held.isRRef());
    EXPECT_TRUE(at::equal(z, 8 * x));
  }
}

TEST_F(Guide, RemoteModules) {
  RemoteModule<NetImpl> net("worker1/cpu", 64, 10);
  at::Tensor scores = net.forward(at::rand({8, 64}));
  Future<at::Tensor> later = net.forward_async(at::rand({8, 64}));
  std::vector<RRef<at::Tensor>> parameters = net.remote_parameters();  // for a DistributedOptimizer
  RemoteModule<NetImpl> same(net.get_module_rref());
  same.load_state_dict(net.state_dict());
  EXPECT_EQ(scores.sizes(), (std::vector<int64_t>{8, 10}));
  EXPECT_EQ(later.wait().sizes(), scores.sizes());
  EXPECT_EQ(parameters.size(), 2u);
}

void report_dead(const std::string& name) { std::cerr << name << " is dead\n"; }

TEST(GuideAgents, OpenGroup) {
  RpcBackendOptions options;
  options.store = std::make_shared<gradwire::store::HashStore>();
  std::shared_ptr<Agent> present = Agent::start("other", -1, 0, options);
  std::shared_ptr<Agent> worker = Agent::start("worker", -1, /*world_size=*/0, options);  // the next free id
  WorkerInfo other = worker->wait_for_worker("other", absl::Seconds(30));  // waits until it has joined
  std::shared_ptr<void> subscription = worker->on_worker_change([](const WorkerInfo& who, WorkerState state) {
    if (state == WorkerState::kDead) report_dead(who.name);
  });
  EXPECT_EQ(other.id, 0);
  EXPECT_EQ(worker->get_worker_info().id, 1);
  present->shutdown();
  worker->shutdown();
}

TEST(GuideAgents, SeveralInOneProcess) {
  const at::Tensor x = at::ones({3});
  RpcBackendOptions options;
  options.store = std::make_shared<gradwire::store::HashStore>();
  auto joining = std::async(std::launch::async, [&] { return Agent::start("b", 1, 2, options); });
  std::shared_ptr<Agent> a = Agent::start("a", 0, 2, options);  // returns when both have joined
  std::shared_ptr<Agent> b = joining.get();
  at::Tensor y = a->rpc_sync<&scale>("b", x, 2.0);
  EXPECT_TRUE(at::equal(y, 2 * x));
  a->shutdown(/*graceful=*/false);
  b->shutdown(/*graceful=*/false);
}

}  // namespace
