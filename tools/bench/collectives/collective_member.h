#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "gradwire/tools/bench/collectives/collective_page.h"
#include "gradwire/tools/bench/run/bench_process.h"

namespace gradwire::bench {

// The memory of a case as tensors; the names are those of collective_work.
struct CollectiveTensors {
  at::Tensor part;
  at::Tensor whole;
  at::Tensor result;
  // The first part of `result`. Made before the calls, because a view costs a microsecond in libtorch.
  at::Tensor received;
  // The parts of `whole`.
  std::vector<at::Tensor> list;
};

// One rank of a system of the suite collectives that runs in this program. Member 0 hosts the store of the
// system and creates the shared page of the ranks' barriers.
class CollectiveMember : public BenchProcess {
 public:
  std::string listen(const Endpoint& endpoint) final;
  void join(const Endpoint& endpoint) final;
  Measurement run(const Task& task) final;

 protected:
  // Called on member 0: starts the store and returns its port.
  virtual int host_store() = 0;
  // Joins the group of ranks. `port` is that of the store on member 0.
  virtual void join_group(const Endpoint& endpoint, int port) = 0;
  // Makes one collective call.
  virtual void call(const collective_work& work, CollectiveTensors& tensors) = 0;

 private:
  Endpoint endpoint_;
  CollectivePage page_;
};

// Gradwire's process groups, and the Gloo of libtorch.
std::unique_ptr<BenchProcess> make_gradwire_collectives();
std::unique_ptr<BenchProcess> make_gloo_collectives();
// Open MPI: one member, which starts the ranks with mpirun.
std::unique_ptr<BenchProcess> make_openmpi_peer();
// A floor: the copies that a case needs at least, at the speed of the machine's memory.
std::unique_ptr<BenchProcess> make_floor_memory();

}  // namespace gradwire::bench
