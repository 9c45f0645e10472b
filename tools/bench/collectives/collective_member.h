#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "gradwire/tools/bench/collectives/collective_page.h"
#include "gradwire/tools/bench/run/participant.h"

namespace gradwire::bench {

// A case's memory as tensors.
struct CollectiveTensors {
  at::Tensor part;
  at::Tensor whole;
  at::Tensor result;
  // Its first part: a view costs libtorch a microsecond.
  at::Tensor received;
  // The parts of `whole`.
  std::vector<at::Tensor> list;
};

// One rank of a side of the suite collectives that lives in this program; member 0 holds the side's store, if
// it has one, and the page in which the ranks meet.
class CollectiveMember : public Participant {
 public:
  std::string listen(const Place& place) final;
  void join(const Place& place) final;
  Measurement run(const Task& task) final;

 protected:
  // On member 0: the port of the store that the others join.
  virtual int host_store() = 0;
  // `port` on the others.
  virtual void join_group(const Place& place, int port) = 0;
  virtual void call(const collective_work& work, CollectiveTensors& tensors) = 0;

 private:
  Place place_;
  CollectivePage page_;
};

// Gradwire's process groups, and Gloo as libtorch has it.
std::unique_ptr<Participant> make_gradwire_collectives();
std::unique_ptr<Participant> make_gloo_collectives();
// Open MPI: one member, which has mpirun start the ranks.
std::unique_ptr<Participant> make_openmpi_peer();
// The copies that a case cannot do without, at the speed of this machine's memory.
std::unique_ptr<Participant> make_floor_memory();

}  // namespace gradwire::bench
