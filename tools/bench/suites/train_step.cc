#include "gradwire/tools/bench/suites/train_step.h"

#include <ATen/ops/equal.h>

#include <stdexcept>
#include <string>

#include "gradwire/tools/bench/suites/case_timing.h"
#include "gradwire/tools/bench/suites/flat_mlp.h"

namespace gradwire::bench {

Measurement run_train_step(TensorRpc& rpc, int server, const Task& task) {
  FlatMlp model;
  const at::Tensor initial = FlatMlp::initial_parameters();
  model.gradient(initial);
  const float initial_loss = model.loss();
  at::Tensor parameters;
  int64_t computing = 0;
  Measurement result = measure(
      timing_of(task), [&](int64_t) { parameters = at::Tensor(); },
      [&](int64_t) {
        parameters = rpc.pull_model(server);
        const int64_t start = nanoseconds(CLOCK_THREAD_CPUTIME_ID);
        const at::Tensor gradient = model.gradient(parameters);
        computing += nanoseconds(CLOCK_THREAD_CPUTIME_ID) - start;
        rpc.push_model(server, gradient);
      },
      [&](int64_t i) {
        // The first step may be the first of all trainers. A comparison with NaN is false.
        if (!(model.loss() <= initial_loss * 1.0001F)) {
          throw std::runtime_error("wrong loss: got " + std::to_string(model.loss()) + ", expected at most " +
                                   std::to_string(initial_loss));
        }
        // The last ten parameters are a bias, which changes in every step.
        const int64_t end = initial.numel();
        if (i > 0 && at::equal(parameters.slice(0, end - 10), initial.slice(0, end - 10))) {
          throw std::runtime_error("the parameters do not change");
        }
      });
  result.own_cpu_us += static_cast<double>(computing) / 1000;
  return result;
}

}  // namespace gradwire::bench
