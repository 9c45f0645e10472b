#include "gradwire/tools/bench/suites/tensor_rpc.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>
#include <vector>

#include "gradwire/tools/bench/run/measure.h"
#include "gradwire/tools/bench/run/pattern.h"
#include "gradwire/tools/bench/suites/case_name.h"
#include "gradwire/tools/bench/suites/case_timing.h"
#include "gradwire/tools/bench/suites/train_step.h"

namespace gradwire::bench {
namespace {

at::Tensor floats(int64_t count) { return at::empty({count}, at::kFloat); }

void check_defined(const at::Tensor& got, int64_t count) {
  if (!got.defined() || got.numel() != count || got.scalar_type() != at::kFloat || !got.is_contiguous()) {
    throw std::runtime_error("wrong result: expected a contiguous float tensor of " + std::to_string(count) +
                             " elements");
  }
}

// The arguments of a call that adds two floats to two floats. The numbers change with each call.
struct Add2 {
  at::Tensor x = floats(2);
  at::Tensor y = floats(2);

  void change(int64_t i) {
    const auto n = static_cast<float>(i & 0xffff);
    float* a = x.data_ptr<float>();
    float* b = y.data_ptr<float>();
    a[0] = n;
    a[1] = n + 1;
    b[0] = 2 * n;
    b[1] = 7;
  }
  static void check(const at::Tensor& got, int64_t i) {
    check_defined(got, 2);
    const auto n = static_cast<float>(i & 0xffff);
    const float* sum = got.data_ptr<float>();
    if (sum[0] != 3 * n || sum[1] != n + 8) throw std::runtime_error("wrong sum of two floats");
  }
};

Measurement run_add(TensorRpc& rpc, int to, const Task& task) {
  Add2 add;
  at::Tensor got;
  return measure(
      timing_of(task), [&](int64_t i) { add.change(i); }, [&](int64_t) { got = rpc.add(to, add.x, add.y); },
      [&](int64_t i) { Add2::check(got, i); });
}

// Every worker calls every other, one after the other.
Measurement run_add_all(TensorRpc& rpc, const Endpoint& endpoint, const Task& task) {
  Add2 add;
  at::Tensor got;
  return measure(
      timing_of(task), [&](int64_t i) { add.change(i); },
      [&](int64_t i) {
        const int step = 1 + static_cast<int>(i % (endpoint.size - 1));
        got = rpc.add((endpoint.rank + step) % endpoint.size, add.x, add.y);
      },
      [&](int64_t i) { Add2::check(got, i); });
}

// Calls the server while another worker has far more pending calls than threads.
Measurement run_queued(TensorRpc& rpc, int to, const Endpoint& endpoint, const Task& task) {
  constexpr int kPending = 256;
  // A worker serves 16 calls at a time, so the naps are long enough that the last ones begin after the
  // measurement.
  const auto nap_us = static_cast<int64_t>(task.seconds * 1.5e6 / (kPending / 16));
  std::vector<absl::AnyInvocable<int64_t()>> pending;
  for (int i = 0; i < kPending; ++i) pending.push_back(rpc.nap_async(endpoint.size - 2, nap_us));
  Measurement result = run_add(rpc, to, task);
  for (auto& nap : pending) {
    if (nap() != nap_us) throw std::runtime_error("wrong answer of a queued call");
  }
  return result;
}

// Makes one call to every other worker, all at the same time. Measures until all calls are answered.
Measurement run_all_to_all(TensorRpc& rpc, const Endpoint& endpoint) {
  Add2 add;
  add.change(1);
  Measurement result;
  result.begin_ns = nanoseconds();
  std::vector<absl::AnyInvocable<at::Tensor()>> pending;
  for (int step = 1; step < endpoint.size; ++step) {
    pending.push_back(rpc.add_async((endpoint.rank + step) % endpoint.size, add.x, add.y));
  }
  for (auto& call : pending) Add2::check(call(), 1);
  result.end_ns = nanoseconds();
  result.calls = endpoint.size - 1;
  return result;
}

Measurement run_in_flight(TensorRpc& rpc, int to, const Task& task) {
  struct Slot {
    Add2 add;
    int64_t i = 0;
    absl::AnyInvocable<at::Tensor()> pending;
  };
  std::vector<Slot> slots(static_cast<std::size_t>(task.depth));
  int64_t next = 0;
  return measure_in_flight(
      task.seconds, task.depth,
      [&](int n) {
        Slot& slot = slots[static_cast<std::size_t>(n)];
        slot.i = next++;
        slot.add.change(slot.i);
        slot.pending = rpc.add_async(to, slot.add.x, slot.add.y);
      },
      [&](int n) {
        Slot& slot = slots[static_cast<std::size_t>(n)];
        Add2::check(slot.pending(), slot.i);
      });
}

Measurement run_nothing(TensorRpc& rpc, int to, const Task& task) {
  const auto unchecked = [](int64_t) {};
  return measure(
      timing_of(task), unchecked, [&](int64_t) { rpc.nothing(to); }, unchecked);
}

Measurement run_nothing_in_flight(TensorRpc& rpc, int to, const Task& task) {
  std::vector<absl::AnyInvocable<void()>> pending(static_cast<std::size_t>(task.depth));
  return measure_in_flight(
      task.seconds, task.depth, [&](int n) { pending[static_cast<std::size_t>(n)] = rpc.nothing_async(to); },
      [&](int n) { pending[static_cast<std::size_t>(n)](); });
}

Measurement run_echo(TensorRpc& rpc, int to, const Task& task, int64_t bytes) {
  at::Tensor x = floats(bytes / 4);
  at::Tensor got;
  const auto size = static_cast<std::size_t>(bytes);
  return measure(
      timing_of(task),
      [&](int64_t i) {
        got = at::Tensor();
        fill_pattern(x.data_ptr(), size, static_cast<uint64_t>(i));
      },
      [&](int64_t) { got = rpc.echo(to, x); },
      [&](int64_t i) {
        check_defined(got, bytes / 4);
        check_pattern(got.data_ptr(), size, static_cast<uint64_t>(i));
      });
}

template <class Send>
Measurement run_sum(const Task& task, int64_t bytes, bool fresh, Send send) {
  at::Tensor x = floats(bytes / 4);
  double want = 0;
  double got = 0;
  return measure(
      timing_of(task),
      [&](int64_t i) {
        if (fresh) x = floats(bytes / 4);
        want = fill_summands(x.data_ptr<float>(), bytes / 4, static_cast<uint64_t>(i));
      },
      [&](int64_t) { got = send(x); }, [&](int64_t) { check_sum(got, want); });
}

// A tensor goes to the callee and back, and then again. Filling it each time would take longer than the call,
// so its elements are written once.
Measurement run_pass(TensorRpc& rpc, int to, const Task& task, int64_t bytes) {
  const int64_t count = bytes / 4;
  at::Tensor x = rpc.tensor_for(to, count);
  fill_pattern(x.data_ptr(), static_cast<std::size_t>(bytes), 0);
  const float filled = x.data_ptr<float>()[0];
  float first = 0;
  Measurement result = measure(
      timing_of(task),
      [&](int64_t i) {
        first = static_cast<float>(i & 0xffff);
        x.data_ptr<float>()[0] = first;
      },
      [&](int64_t) { x = rpc.pass(to, std::move(x)); },
      [&](int64_t) {
        check_defined(x, count);
        if (x.data_ptr<float>()[0] != first + 1) throw std::runtime_error("the callee's change was lost");
      });
  x.data_ptr<float>()[0] = filled;
  check_pattern(x.data_ptr(), static_cast<std::size_t>(bytes), 0);
  return result;
}

Measurement run_pull(TensorRpc& rpc, int to, const Task& task, int64_t bytes) {
  at::Tensor got;
  return measure(
      timing_of(task), [&](int64_t) { got = at::Tensor(); }, [&](int64_t) { got = rpc.pull(to, bytes / 4); },
      [&](int64_t) {
        check_defined(got, bytes / 4);
        const float* data = got.data_ptr<float>();
        float worst = 0;
        for (int64_t i = 0; i < bytes / 4; ++i) worst = std::max(worst, std::abs(data[i] - data[0]));
        if (worst != 0) throw std::runtime_error("wrong contents: the parameter is not uniform");
      });
}

// A call is one step of a trainer: it pushes the gradient to the server and pulls the new parameters.
Measurement run_push_pull(TensorRpc& rpc, int to, const Task& task, int64_t bytes) {
  at::Tensor gradient = floats(bytes / 4);
  float before = rpc.pull_parameters(to).data_ptr<float>()[0];
  at::Tensor got;
  float step = 0;
  return measure(
      timing_of(task),
      [&](int64_t i) {
        got = at::Tensor();
        // Use whole numbers with alternating signs, so that the parameters are exact.
        step = (i % 2 == 0 ? 1.0F : -1.0F) * static_cast<float>(1 + i / 2 % 5);
        float* data = gradient.data_ptr<float>();
        for (int64_t n = 0; n < bytes / 4; ++n) data[n] = step;
      },
      [&](int64_t) {
        rpc.push_gradient(to, gradient);
        got = rpc.pull_parameters(to);
      },
      [&](int64_t) {
        check_defined(got, bytes / 4);
        const float want = before - step;
        const float* data = got.data_ptr<float>();
        bool right = true;
        for (int64_t n = 0; n < bytes / 4; ++n) right &= data[n] == want;
        if (!right) throw std::runtime_error("wrong parameters after a push");
        before = want;
      });
}

}  // namespace

Measurement run_tensor_case(TensorRpc& rpc, const Endpoint& endpoint, const Task& task) {
  const CaseName name = parse_case(task.case_name);
  const std::string& operation = name.operation;
  // Callers that compute between calls have a callee each.
  const int server = name.compute_us > 0 ? endpoint.rank - endpoint.size / 2 : 0;
  if (operation == "add2") return run_add(rpc, server, task);
  if (operation == "null") return run_nothing(rpc, server, task);
  if (operation == "inflight_null") return run_nothing_in_flight(rpc, server, task);
  if (operation == "train_step") return run_train_step(rpc, server, task);
  if (operation == "inflight_add2") return run_in_flight(rpc, server, task);
  if (operation == "queued_add2") return run_queued(rpc, server, endpoint, task);
  if (operation == "all_to_all") return run_all_to_all(rpc, endpoint);
  if (operation == "oversubscribed_add2") return run_add_all(rpc, endpoint, task);
  if (name.bytes > 0) {
    if (operation == "echo") return run_echo(rpc, server, task, name.bytes);
    if (operation == "push") {
      return run_sum(task, name.bytes, false, [&](const at::Tensor& x) { return rpc.sum(server, x); });
    }
    if (operation == "lend") {
      return run_sum(task, name.bytes, false, [&](const at::Tensor& x) { return rpc.sum_lent(server, x); });
    }
    if (operation == "move") {
      return run_sum(task, name.bytes, true,
                     [&](at::Tensor& x) { return rpc.sum_moved(server, std::move(x)); });
    }
    if (operation == "pass") return run_pass(rpc, server, task, name.bytes);
    if (operation == "pull") return run_pull(rpc, server, task, name.bytes);
    if (operation == "push_pull") return run_push_pull(rpc, server, task, name.bytes);
  }
  throw std::invalid_argument("unknown case of the suite rpc: " + task.case_name);
}

}  // namespace gradwire::bench
