#include "gradwire/tools/bench/cuda/cuda_cases.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/cuda/CUDAStream.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "gradwire/tools/bench/run/measure.h"
#include "gradwire/tools/bench/suites/resident.h"

namespace gradwire::bench {
namespace {

at::Tensor on_gpu(at::IntArrayRef sizes, double value) {
  return at::full(sizes, value, at::TensorOptions().dtype(at::kFloat).device(kGpu));
}

void check_place(const at::Tensor& got, int64_t count) {
  if (!got.defined() || got.device() != kGpu || got.numel() != count || got.scalar_type() != at::kFloat) {
    throw std::runtime_error("wrong result: expected a float tensor of " + std::to_string(count) +
                             " elements on " + kGpu.str());
  }
}

// Compares on the GPU; only the answer is copied to the host.
void check_equal(const at::Tensor& got, const at::Tensor& expected, const char* what) {
  check_place(got, expected.numel());
  if (!(got == expected).all().item<bool>()) throw std::runtime_error(std::string("wrong ") + what);
}

Measurement run_add(CudaRpc& rpc, const Task& task) {
  at::Tensor x = on_gpu({2}, 0);
  const at::Tensor y = on_gpu({2}, 7);
  at::Tensor got;
  return measure(
      {.seconds = task.seconds},
      [&](int64_t i) {
        x.fill_(static_cast<double>(i & 0xffff));
        finish_stream();
      },
      [&](int64_t) {
        got = rpc.add(x, y);
        finish_stream();
      },
      [&](int64_t) { check_equal(std::exchange(got, at::Tensor()), x + y, "sum of two floats"); });
}

Measurement run_echo(CudaRpc& rpc, const Task& task, int64_t bytes) {
  const at::Tensor base = at::arange(bytes / 4, at::TensorOptions().dtype(at::kFloat).device(kGpu));
  at::Tensor x = at::empty_like(base);
  at::Tensor got;
  return measure(
      {.seconds = task.seconds, .large = true},
      [&](int64_t i) {
        got = at::Tensor();
        x.copy_(base).add_(static_cast<double>(i & 0xff));
        finish_stream();
      },
      [&](int64_t) {
        got = rpc.echo(x);
        finish_stream();
      },
      [&](int64_t) { check_equal(got, x, "contents of an echo"); });
}

Measurement run_push_pull(CudaRpc& rpc, const Task& task) {
  at::Tensor gradient = on_gpu({kServerFloats}, 0);
  at::Tensor before = rpc.pull_parameters().clone();
  at::Tensor got;
  return measure(
      {.seconds = task.seconds, .large = true},
      [&](int64_t i) {
        got = at::Tensor();
        // Whole numbers with alternating signs, so that the parameters are exact.
        gradient.fill_((i % 2 == 0 ? 1.0 : -1.0) * static_cast<double>(1 + i / 2 % 5));
        finish_stream();
      },
      [&](int64_t) {
        rpc.push_gradient(gradient);
        got = rpc.pull_parameters();
        finish_stream();
      },
      [&](int64_t) {
        before = before - gradient;
        check_equal(got, before, "parameters after a push");
      });
}

Measurement run_remote_add(CudaRpc& rpc, const Task& task) {
  const at::Tensor x = on_gpu({2}, 1).requires_grad_();
  const at::Tensor y = on_gpu({2}, 2).requires_grad_();
  const at::Tensor expected = on_gpu({2}, 1);
  at::Tensor gradient;
  return measure(
      {.seconds = task.seconds}, [](int64_t) {},
      [&](int64_t) {
        gradient = rpc.remote_add(x, y);
        finish_stream();
      },
      [&](int64_t) { check_equal(std::exchange(gradient, at::Tensor()), expected, "gradient"); });
}

}  // namespace

void finish_stream() { c10::cuda::getCurrentCUDAStream(kGpu.index()).synchronize(); }

void begin_cuda() {
  at::set_num_threads(1);
  (void)on_gpu({1}, 0);
  finish_stream();
}

Measurement run_cuda_case(CudaRpc& rpc, const Task& task) {
  if (task.case_name == "add2_cuda") return run_add(rpc, task);
  if (task.case_name == "echo_64MiB_cuda") return run_echo(rpc, task, int64_t{64} << 20);
  if (task.case_name == "push_pull_cuda") return run_push_pull(rpc, task);
  if (task.case_name == "remote_add_cuda") return run_remote_add(rpc, task);
  throw std::invalid_argument("unknown case of the suite cuda: " + task.case_name);
}

}  // namespace gradwire::bench
