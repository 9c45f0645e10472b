// Measures where the time of one training step goes (suite autograd, case remote_add). Prints the duration of
// each part of the step at the trainer, and what the same messages cost without a graph. Uses two processes,
// which communicate over shared memory or over the transport given on the command line.
//
//   bazel run -c opt //tools/bench:autograd_budget [-- tcp]

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gradwire/autograd/autograd.h"
#include "gradwire/base/error.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/tools/bench/run/measure.h"
#include "gradwire/tools/bench/systems/gradwire_member.h"

namespace gradwire::bench {
namespace {

constexpr int kRounds = 7;
constexpr int kRuns = 2000;
// The service method ABORT of autograd. For an unknown pass it has no effect and is answered at once.
constexpr uint32_t kAnsweredAtOnce = 19;

double median_of(std::vector<double> values) { return median(std::move(values)); }

// Returns how often the threads of a process have blocked (voluntary context switches).
int64_t sleeps_of(pid_t process) {
  int64_t total = 0;
  std::error_code error;
  for (const auto& task :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", process, "/task"), error)) {
    std::ifstream status(task.path() / "status");
    for (std::string line; std::getline(status, line);) {
      absl::string_view value = line;
      int64_t count = 0;
      if (absl::ConsumePrefix(&value, "voluntary_ctxt_switches:") && absl::SimpleAtoi(value, &count))
        total += count;
    }
  }
  return total;
}

class Trainer final : public GradwireMember {
 public:
  Measurement run(const Task& /*task*/) override { return {}; }

  void measure_all(pid_t other) {
    other_ = agent()->get_worker_info("w1");
    worker_ = value_or_throw(agent()->services().find_worker("w1"));
    process_ = other;
    for (at::Tensor* leaf : {&x_, &y_}) *leaf = at::empty({2}, at::kFloat).fill_(1).requires_grad_();
    std::printf("%-64s %9s %9s %9s\n", "sequential, warm; medians", "us", "sleeps,", "sleeps,");
    std::printf("%-64s %9s %9s %9s\n", "", "", "trainer", "worker");
    const at::Tensor plain = x_.detach();
    measure_alone("remote add, no autograd", [&] { (void)add(plain); });
    measure_alone("remote add of tensors that require grad, no context", [&] { (void)add(x_); });
    measure_alone("open and end an empty context", [&] { const autograd::Context context(agent()); });
    measure_alone("service call; wait as for an RPC", [&] { (void)service().wait(); });
    measure_alone("service call; wait for its callback without spinning", [&] {
      const Promise<void> done;
      service().on_ready([done](const auto&) { done.set_value(); });
      done.future().wait();
    });
    measure_alone("the same add, sum and backward by libtorch, in one process", [&] {
      x_.mutable_grad().reset();
      y_.mutable_grad().reset();
      x_.add(y_).sum().backward();
    });
    x_.mutable_grad().reset();
    y_.mutable_grad().reset();
    for (const auto& [name, mode] :
         {std::pair("smart", autograd::BackwardMode::kSmart), {"fast", autograd::BackwardMode::kFast}}) {
      std::printf("\nremote_add, %s\n", name);
      steps(mode);
    }
  }

 private:
  enum Part : std::size_t { kOpen, kCall, kSum, kBackward, kRead, kEnd, kAll, kParts };

  at::Tensor add(const at::Tensor& x) { return agent()->rpc_sync<at::Tensor>(other_, add_, x, x); }

  Future<rpc::ServiceReply> service() {
    return agent()->services().call_service(worker_, kAnsweredAtOnce, "", nullptr, {.repeat = true});
  }

  void row(const std::string& what, double micros, int64_t own, int64_t other, int64_t runs) const {
    std::printf("%-64s %9.2f", what.c_str(), micros);
    if (runs > 0) {
      std::printf(" %9.2f %9.2f", static_cast<double>(own) / static_cast<double>(runs),
                  static_cast<double>(other) / static_cast<double>(runs));
    }
    std::printf("\n");
    std::fflush(stdout);
  }

  void measure_alone(const std::string& what, const std::function<void()>& step) {
    std::vector<double> rounds;
    int64_t own = 0, other = 0;
    for (int round = 0; round < kRounds; ++round) {
      for (int i = 0; i < kRuns / 10; ++i) step();
      const int64_t own_before = sleeps_of(getpid()), other_before = sleeps_of(process_);
      std::vector<float> micros;
      for (int i = 0; i < kRuns; ++i) {
        const int64_t start = nanoseconds();
        step();
        micros.push_back(static_cast<float>(nanoseconds() - start) / 1000);
      }
      own += sleeps_of(getpid()) - own_before;
      other += sleeps_of(process_) - other_before;
      rounds.push_back(percentile(std::move(micros), 0.5));
    }
    row(what, median_of(std::move(rounds)), own, other, int64_t{kRounds} * kRuns);
  }

  std::array<int64_t, kParts> step(autograd::BackwardMode mode) {
    std::array<int64_t, kParts + 1> at{};
    at[0] = nanoseconds();
    {
      const autograd::Context context(agent());
      at[1] = nanoseconds();
      const at::Tensor result = agent()->rpc_sync<at::Tensor>(other_, add_, x_, y_);
      at[2] = nanoseconds();
      const at::Tensor loss = result.sum();
      at[3] = nanoseconds();
      autograd::backward(context, {loss}, {.mode = mode});
      at[4] = nanoseconds();
      if (autograd::get_gradients(context).at(y_).numel() != 2) throw std::runtime_error("wrong gradient");
      at[5] = nanoseconds();
    }
    at[6] = nanoseconds();
    std::array<int64_t, kParts> parts{};
    for (std::size_t i = 0; i < kAll; ++i) parts[i] = at[i + 1] - at[i];
    parts[kAll] = at[6] - at[0];
    return parts;
  }

  void steps(autograd::BackwardMode mode) {
    static constexpr const char* kNames[kParts] = {"  open the context",
                                                   "  call: send node, request, handler, answer, recv node",
                                                   "  loss = result.sum()",
                                                   "  backward()",
                                                   "  get_gradients()",
                                                   "  release the tensors and the context",
                                                   "  total"};
    std::array<std::vector<double>, kParts> rounds;
    int64_t own = 0, other = 0;
    for (int round = 0; round < kRounds; ++round) {
      for (int i = 0; i < kRuns / 10; ++i) (void)step(mode);
      std::array<std::vector<float>, kParts> micros;
      const int64_t own_before = sleeps_of(getpid()), other_before = sleeps_of(process_);
      for (int i = 0; i < kRuns; ++i) {
        const auto parts = step(mode);
        for (std::size_t p = 0; p < kParts; ++p) micros[p].push_back(static_cast<float>(parts[p]) / 1000);
      }
      own += sleeps_of(getpid()) - own_before;
      other += sleeps_of(process_) - other_before;
      for (std::size_t p = 0; p < kParts; ++p) rounds[p].push_back(percentile(std::move(micros[p]), 0.5));
    }
    for (std::size_t p = 0; p < kParts; ++p) {
      const int64_t runs = p == kAll ? int64_t{kRounds} * kRuns : 0;
      row(kNames[p], median_of(rounds[p]), own, other, runs);
    }
  }

  rpc::WorkerInfo other_;
  rpc::Worker worker_;
  pid_t process_ = -1;
  const rpc::Op add_{"aten::add"};
  at::Tensor x_, y_;
};

int run(const std::string& transport) {
  int address[2];
  if (pipe(address) != 0) throw std::runtime_error("pipe");
  Endpoint endpoint{.rank = 1, .size = 2, .transport = transport, .addresses = {}};
  const pid_t other = fork();
  if (other < 0) throw std::runtime_error("fork");
  at::set_num_threads(1);
  Trainer member;
  if (other == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    char text[32] = {};
    if (read(address[0], text, sizeof text - 1) <= 0) return 1;
    endpoint.addresses = {text};
    member.join(endpoint);
    while (true) pause();
  }
  endpoint.rank = 0;
  endpoint.addresses = {member.listen(endpoint)};
  if (write(address[1], endpoint.addresses[0].data(), endpoint.addresses[0].size()) <= 0)
    throw std::runtime_error("write");
  member.join(endpoint);
  member.measure_all(other);
  kill(other, SIGKILL);
  waitpid(other, nullptr, 0);
  // End as a process of the bench does, without destructors: the group cannot be shut down, because the other
  // process was killed.
  std::fflush(stdout);
  _exit(0);
}

}  // namespace
}  // namespace gradwire::bench

int main(int argc, char** argv) {
  try {
    return gradwire::bench::run(argc > 1 ? argv[1] : "shm");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "autograd_budget: %s\n", error.what());
    return 1;
  }
}
