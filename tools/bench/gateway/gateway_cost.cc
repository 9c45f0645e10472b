// Measures calls through the gateway beside a bare gRPC echo of the same bytes with the same client, and
// 1,000 clients at once. The worker and the gateway, which also serves the echo, are processes of their own.
//
//   bazel run -c opt //tools/bench/gateway:gateway_cost
//
// Prints the lines of `bench --json`: suite "gateway", peer "grpc_echo".

#include <ATen/ops/add.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gradwire/base/mutex.h"
#include "gradwire/gateway/server.h"
#include "gradwire/proto/gateway.grpc.pb.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/tools/bench/run/clocks.h"
#include "gradwire/tools/bench/suites/bytes.grpc.pb.h"

namespace gradwire::bench {

at::Tensor add(const at::Tensor& x, const at::Tensor& y) { return at::add(x, y); }
GRADWIRE_RPC(add)

namespace {

namespace v1 = gateway::v1;

constexpr int kWarm = 500;
constexpr int kCalls = 4000;
constexpr int kClients = 1000;
constexpr int kCallsOfClient = 20;

// Answers with the bytes it gets, over the same interface of gRPC as the gateway.
class EchoService final : public Echo::CallbackService {
 public:
  grpc::ServerUnaryReactor* Echo(grpc::CallbackServerContext* context, const Bytes* request,
                                 Bytes* response) override {
    response->set_data(request->data());
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

// Runs `body` in a process of its own, until it gets SIGTERM.
pid_t start(const std::function<void(const std::function<void()>& wait)>& body) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  body([&signals] {
    int signal = 0;
    sigwait(&signals, &signal);
  });
  _exit(0);
}

std::shared_ptr<rpc::Agent> join(const std::string& name, const std::string& init) {
  rpc::RpcBackendOptions options;
  options.init_method = init;
  return rpc::Agent::start(name, -1, /*world_size=*/0, options);
}

v1::CallRequest add2() {
  const std::array<float, 2> numbers = {1, 2};
  v1::CallRequest request;
  request.set_worker("worker");
  request.set_function("gradwire::bench::add");
  for (int i = 0; i < 2; ++i) {
    v1::Tensor& tensor = *request.add_arguments()->mutable_tensor();
    tensor.set_dtype(v1::DTYPE_FLOAT32);
    tensor.add_shape(2);
    tensor.set_data(numbers.data(), sizeof(numbers));
  }
  return request;
}

void require(const grpc::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "gateway_cost: %s\n", status.error_message().c_str());
  std::exit(1);
}

std::shared_ptr<grpc::Channel> connect(int port) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials(),
                                   arguments);
}

double quantile(std::vector<double>& values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))];
}

void print(const char* name, const char* metric, double gateway, double echo, bool lower_is_better) {
  std::printf("%s\n", absl::StrFormat(
                          "{\"suite\":\"gateway\",\"case\":\"%s\",\"transport\":\"grpc\",\"metric\":\"%s\","
                          "\"gradwire\":%.1f,\"peer\":\"grpc_echo\",\"peer_value\":%.1f,\"ratio\":%.3f}",
                          name, metric, gateway, echo, lower_is_better ? echo / gateway : gateway / echo)
                          .c_str());
}

// One call after the other.
void measure_one_client(int gateway_port, int echo_port) {
  const auto gateway = v1::Gateway::NewStub(connect(gateway_port));
  const auto echo = Echo::NewStub(connect(echo_port));
  const v1::CallRequest request = add2();
  Bytes bytes;
  bytes.set_data(request.SerializeAsString());
  std::vector<double> through_gateway;
  std::vector<double> bare;
  // In turns, so that both meet the same disturbances of the machine.
  for (int i = 0; i < kWarm + kCalls; ++i) {
    const int64_t begin = nanoseconds();
    grpc::ClientContext first;
    v1::CallResponse response;
    require(gateway->Call(&first, request, &response));
    const int64_t middle = nanoseconds();
    grpc::ClientContext second;
    Bytes back;
    require(echo->Echo(&second, bytes, &back));
    const int64_t end = nanoseconds();
    if (i < kWarm) continue;
    through_gateway.push_back(static_cast<double>(middle - begin) / 1000);
    bare.push_back(static_cast<double>(end - middle) / 1000);
  }
  print("add2", "p50_us", quantile(through_gateway, 0.5), quantile(bare, 0.5), true);
  print("add2", "p99_us", quantile(through_gateway, 0.99), quantile(bare, 0.99), true);
}

// Many connections, each with one call after the other.
struct Crowd {
  Mutex mutex;
  CondVar changed;
  std::vector<double> latencies ABSL_GUARDED_BY(mutex);
  int running ABSL_GUARDED_BY(mutex) = 0;
};

// A client of the crowd: `call` starts one call, and runs the function when it has ended.
class Member {
 public:
  using Call = std::function<void(grpc::ClientContext*, std::function<void(grpc::Status)>)>;
  Member(Crowd& crowd, Call call) : crowd_(crowd), call_(std::move(call)) {}

  void next() {
    if (left_-- == 0) {
      MutexLock lock(crowd_.mutex);
      --crowd_.running;
      crowd_.changed.notify_all();
      return;
    }
    context_ = std::make_unique<grpc::ClientContext>();
    open_ = 2;
    begin_ = nanoseconds();
    call_(context_.get(), [this](const grpc::Status& status) {
      require(status);
      {
        MutexLock lock(crowd_.mutex);
        crowd_.latencies.push_back(static_cast<double>(nanoseconds() - begin_) / 1000);
      }
      ended();
    });
    ended();
  }

 private:
  // The call may end on another thread before `call_` has returned here, which still uses the context. So the
  // later of the two goes on.
  void ended() {
    if (--open_ == 0) next();
  }

  Crowd& crowd_;
  const Call call_;
  int left_ = kCallsOfClient;
  int64_t begin_ = 0;
  std::atomic<int> open_{0};
  std::unique_ptr<grpc::ClientContext> context_;
};

struct Figures {
  double calls_per_s = 0;
  double p99_us = 0;
};

Figures measure_crowd(const std::function<Member::Call()>& connect_one) {
  Crowd crowd;
  std::vector<std::unique_ptr<Member>> members;
  for (int i = 0; i < kClients; ++i) members.push_back(std::make_unique<Member>(crowd, connect_one()));
  {
    MutexLock lock(crowd.mutex);
    crowd.running = kClients;
  }
  const int64_t begin = nanoseconds();
  for (const std::unique_ptr<Member>& member : members) member->next();
  MutexLock lock(crowd.mutex);
  while (crowd.running > 0) crowd.changed.wait(crowd.mutex);
  const double seconds = static_cast<double>(nanoseconds() - begin) / 1e9;
  return {kClients * kCallsOfClient / seconds, quantile(crowd.latencies, 0.99)};
}

void measure_many_clients(int gateway_port, int echo_port) {
  const v1::CallRequest request = add2();
  Bytes bytes;
  bytes.set_data(request.SerializeAsString());
  const Figures gateway = measure_crowd([&] {
    auto stub =
        std::make_shared<std::unique_ptr<v1::Gateway::Stub>>(v1::Gateway::NewStub(connect(gateway_port)));
    auto response = std::make_shared<v1::CallResponse>();
    return [stub, response, &request](grpc::ClientContext* context, std::function<void(grpc::Status)> done) {
      (*stub)->async()->Call(context, &request, response.get(), std::move(done));
    };
  });
  const Figures echo = measure_crowd([&] {
    auto stub = std::make_shared<std::unique_ptr<Echo::Stub>>(Echo::NewStub(connect(echo_port)));
    auto response = std::make_shared<Bytes>();
    return [stub, response, &bytes](grpc::ClientContext* context, std::function<void(grpc::Status)> done) {
      (*stub)->async()->Echo(context, &bytes, response.get(), std::move(done));
    };
  });
  print("clients_1000", "calls_per_s", gateway.calls_per_s, echo.calls_per_s, false);
  print("clients_1000", "p99_us", gateway.p99_us, echo.p99_us, true);
}

int run() {
  // A connection for each client.
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  std::string folder = "/tmp/gateway_cost.XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return 1;
  const std::string init = absl::StrCat("file://", folder, "/job");
  int ports[2];
  if (pipe(ports) != 0) return 1;
  // The processes start before this one has threads.
  const pid_t worker = start([&](const auto& wait) {
    const auto agent = join("worker", init);
    wait();
  });
  const pid_t gateway = start([&](const auto& wait) {
    const auto agent = join("gateway", init);
    agent->wait_for_worker("worker", absl::Seconds(60));
    gateway::Server server(agent);
    EchoService service;
    grpc::ServerBuilder builder;
    int both[2] = {server.port(), 0};
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &both[1]);
    builder.RegisterService(&service);
    const auto echo = builder.BuildAndStart();
    if (write(ports[1], both, sizeof(both)) != sizeof(both)) return;
    wait();
  });
  int both[2];
  if (read(ports[0], both, sizeof(both)) != sizeof(both)) return 1;
  measure_one_client(both[0], both[1]);
  measure_many_clients(both[0], both[1]);
  for (pid_t pid : {gateway, worker}) {
    kill(pid, SIGTERM);
    waitpid(pid, nullptr, 0);
  }
  return 0;
}

}  // namespace
}  // namespace gradwire::bench

int main() { return gradwire::bench::run(); }
