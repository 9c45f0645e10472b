// Measures where the time of one small call goes: each step separately, on one thread, warm. A whole call
// (suite rpc, case add2) takes longer than the sum of the steps. The difference is the cost of the
// communication between the processes and of the hand-over between the steps.
//
//   bazel run -c opt //tools/bench:call_budget

#include <ATen/Parallel.h>
#include <ATen/ops/add.h>
#include <ATen/ops/rand.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/codec/tensor_set.h"
#include "gradwire/codec/torch/tensors/torch_tensors.h"
#include "gradwire/rpc/core/envelope.h"
#include "gradwire/rpc/profile/call_profiler.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/tools/bench/run/measure.h"
#include "gradwire/transport/message.h"

namespace gradwire::bench {
namespace {

// Returns the duration of one run of `step` in nanoseconds: the best of several rounds, because an
// interruption of a round is not part of the step.
double cost_of(const std::function<void()>& step) {
  constexpr int kRounds = 20;
  constexpr int kRuns = 5000;
  double best = 1e18;
  for (int round = 0; round < kRounds; ++round) {
    const int64_t start = nanoseconds();
    for (int i = 0; i < kRuns; ++i) step();
    best = std::min(best, static_cast<double>(nanoseconds() - start) / kRuns);
  }
  return best;
}

double total = 0;

void row(const char* worker, const char* what, double cost) {
  total += cost;
  std::printf("%-8s %-58s %7.0f ns\n", worker, what, cost);
}

std::unique_ptr<rpc::TorchTensors> set_of(const std::vector<at::Tensor>& tensors) {
  auto set = std::make_unique<rpc::TorchTensors>();
  for (const at::Tensor& tensor : tensors) set->add(tensor, false);
  return set;
}

// Fills `payload` as for sending: with these tensors, and with one value for each tensor that refers to it.
void fill(proto::Payload& payload, const rpc::TorchTensors& tensors) {
  std::vector<transport::Buffer> buffers;
  for (std::size_t i = 0; i < tensors.size(); ++i) payload.add_values()->set_tensor(static_cast<uint32_t>(i));
  throw_if_error(rpc::tensor_backend()->encode(tensors, rpc::TensorSharing::kBorrow, payload, buffers));
}

void measure_message(const char* from, const char* to, bool request, const std::vector<at::Tensor>& tensors) {
  const auto build = [&](rpc::EnvelopeBox& envelope) {
    proto::Payload* payload = nullptr;
    if (request) {
      envelope->mutable_request()->set_operator_("aten::add");
      envelope->mutable_request()->set_call_id(1'000'000);
      payload = envelope->mutable_request()->mutable_arguments();
    } else {
      envelope->mutable_response()->set_call_id(1'000'000);
      payload = envelope->mutable_response()->mutable_result();
    }
    fill(*payload, *set_of(tensors));
  };
  row(from,
      request ? "build envelope in arena, encode two tensors" : "build envelope in arena, encode one tensor",
      cost_of([&] {
        rpc::EnvelopeBox envelope;
        build(envelope);
      }));
  rpc::EnvelopeBox envelope;
  build(envelope);
  std::string bytes;
  row(from, "serialise", cost_of([&] { bytes = (*envelope).SerializeAsString(); }));
  row(to, "parse into arena", cost_of([&] {
        rpc::EnvelopePtr box = rpc::make_envelope();
        if (!(*box)->ParseFromString(bytes)) std::abort();
      }));
  const proto::Payload& payload = request ? envelope->request().arguments() : envelope->response().result();
  row(to, "decode tensors, release them",
      cost_of([&] { throw_if_error(rpc::tensor_backend()->decode(payload, {}).status()); }));
}

int run() {
  at::set_num_threads(1);
  rpc::RpcBackendOptions options;
  options.store = std::make_shared<store::HashStore>();
  const std::shared_ptr<rpc::Agent> agent = rpc::Agent::start("alone", 0, 1, options);
  const at::Tensor a = at::rand({2});
  const at::Tensor b = at::rand({2});

  row("caller", "find worker, set deadline, convert arguments", cost_of([&] {
        rpc::OutgoingCall call(agent->caller(), "alone", "aten::add");
        rpc::prepare_call(call, rpc::Op("aten::add"), a, b);
      }));
  measure_message("caller", "callee", true, {a, b});
  for (const char* worker : {"caller", "callee"}) {
    row(worker, "ask whether a profiler sees the call", cost_of([] {
          if (rpc::active_call_profiler() != nullptr) std::abort();
        }));
  }
  row("callee", "run aten::add", cost_of([&] { at::add(a, b); }));
  measure_message("callee", "caller", false, {at::add(a, b)});
  row("caller", "make a promise, fulfil it, wait for it", cost_of([&] {
        Promise<at::Tensor> promise(agent->executor());
        promise.set_value(a);
        (void)promise.future().wait();
      }));
  std::printf("%-8s %-58s %7.0f ns\n", "", "total", total);
  agent->shutdown();
  return 0;
}

}  // namespace
}  // namespace gradwire::bench

int main() {
  try {
    return gradwire::bench::run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "call_budget: %s\n", error.what());
    return 1;
  }
}
