// Where the time of one small call goes: each step by itself, on one thread, hot. What a whole call takes
// beyond their sum (suite rpc, case add2) is the way between the processes and between the steps.
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
#include "gradwire/codec/torch/torch_tensors.h"
#include "gradwire/rpc/link/envelope.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/tools/bench/run/measure.h"
#include "gradwire/transport/message.h"

namespace gradwire::bench {
namespace {

// Nanoseconds of one run of `step`, the best of several rounds: what interrupts a round is not the step's.
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

void row(const char* side, const char* what, double cost) {
  total += cost;
  std::printf("%-8s %-58s %7.0f ns\n", side, what, cost);
}

std::unique_ptr<rpc::TorchTensors> set_of(const std::vector<at::Tensor>& tensors) {
  auto set = std::make_unique<rpc::TorchTensors>();
  for (const at::Tensor& tensor : tensors) set->add(tensor, false);
  return set;
}

// A message as it travels, with these tensors and as many values that name them.
void fill(proto::Payload& payload, const rpc::TorchTensors& tensors) {
  std::vector<transport::Buffer> buffers;
  for (std::size_t i = 0; i < tensors.size(); ++i) payload.add_values()->set_tensor(static_cast<uint32_t>(i));
  throw_if_error(rpc::tensor_backend()->encode(tensors, rpc::TensorSharing::kBorrow, payload, buffers));
}

void measure_message(const char* from, const char* to, bool request, const std::vector<at::Tensor>& tensors) {
  const auto put_together = [&](rpc::EnvelopeBox& envelope) {
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
      request ? "envelope in its arena, two tensors encoded" : "envelope in its arena, one tensor encoded",
      cost_of([&] {
        rpc::EnvelopeBox envelope;
        put_together(envelope);
      }));
  rpc::EnvelopeBox envelope;
  put_together(envelope);
  std::string bytes;
  row(from, "serialised", cost_of([&] { bytes = (*envelope).SerializeAsString(); }));
  row(to, "parsed into its arena", cost_of([&] {
        rpc::EnvelopePtr box = rpc::make_envelope();
        if (!(*box)->ParseFromString(bytes)) std::abort();
      }));
  const proto::Payload& payload = request ? envelope->request().arguments() : envelope->response().result();
  row(to, "tensors decoded, and given back",
      cost_of([&] { throw_if_error(rpc::tensor_backend()->decode(payload, {}).status()); }));
}

int run() {
  at::set_num_threads(1);
  rpc::RpcBackendOptions options;
  options.store = std::make_shared<store::HashStore>();
  const std::shared_ptr<rpc::Agent> agent = rpc::Agent::start("alone", 0, 1, options);
  const at::Tensor a = at::rand({2});
  const at::Tensor b = at::rand({2});

  row("caller", "worker found, deadline set, arguments as values", cost_of([&] {
        rpc::OutgoingCall call(agent->caller(), "alone", "aten::add");
        rpc::prepare_call(call, rpc::Op("aten::add"), a, b);
      }));
  measure_message("caller", "callee", true, {a, b});
  row("callee", "aten::add itself", cost_of([&] { at::add(a, b); }));
  measure_message("callee", "caller", false, {at::add(a, b)});
  row("caller", "a promise made, kept and waited for", cost_of([&] {
        Promise<at::Tensor> promise(agent->executor());
        promise.set_value(a);
        (void)promise.future().wait();
      }));
  std::printf("%-8s %-58s %7.0f ns\n", "", "together", total);
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
