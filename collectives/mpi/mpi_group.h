#pragma once

#include <memory>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/collectives/group_backend.h"
#include "gradwire/collectives/mpi/mpi_collective.h"
#include "gradwire/collectives/mpi/mpi_member.h"
#include "gradwire/collectives/mpi/mpi_messages.h"

namespace gradwire::collectives {

// A group over Open MPI. Every collective uses MPI's nonblocking form and polls it until it has ended or the
// deadline has passed. MPI cannot cancel a collective. So after an error its tensors are kept until the
// process ends, because MPI may still write to them, and MPI is not finalised.
//
// Half and bfloat16 travel as float where combines_in_float() says so: MPI reduces floats, and the result is
// rounded once. That takes twice the bytes, but MPI has no operation that keeps more bits than its input.
//
// MPI's collectives need one buffer where GroupBackend's have a list of tensors. If the tensors of a list are
// adjacent in memory, their memory is that buffer; otherwise they are copied.
class MpiGroup final : public GroupBackend {
 public:
  using Tensors = std::vector<at::Tensor>;

  explicit MpiGroup(std::shared_ptr<MpiMember> member) : member_(std::move(member)), messages_(member_) {}
  ~MpiGroup() override;

  absl::Status broadcast(at::Tensor tensor, int root, absl::Time deadline) override;
  absl::Status reduce(at::Tensor tensor, int root, const Reduction& op, absl::Time deadline) override;
  absl::Status all_reduce(at::Tensor tensor, const Reduction& op, absl::Time deadline) override;
  absl::Status gather(at::Tensor tensor, Tensors outputs, int root, absl::Time deadline) override;
  absl::Status all_gather(at::Tensor tensor, Tensors outputs, absl::Time deadline) override;
  absl::Status scatter(at::Tensor tensor, Tensors inputs, int root, absl::Time deadline) override;
  absl::Status reduce_scatter(at::Tensor output, Tensors inputs, const Reduction& op,
                              absl::Time deadline) override;
  absl::Status all_to_all(Tensors outputs, Tensors inputs, absl::Time deadline) override;
  absl::Status barrier(absl::Time deadline) override;
  Future<void> send(at::Tensor tensor, int dst, int tag, absl::Time deadline) override;
  Future<int> receive(at::Tensor tensor, int src, int tag, absl::Time deadline) override;
  void abort(const absl::Status& reason) override;

 private:
  // Runs `body` as the group's next collective, unless the group is broken.
  template <class Body>
  absl::Status collective(const char* name, absl::Time deadline, Body body) {
    GRADWIRE_RETURN_IF_ERROR(member_->refusal());
    ++progress_.begun;
    MpiCollective call(*member_, progress_, name, deadline);
    GRADWIRE_RETURN_IF_ERROR(body(call));
    progress_.finished.store(progress_.begun, std::memory_order_relaxed);
    return absl::OkStatus();
  }
  // `root` -1: the tensor of every rank becomes the result.
  absl::Status reduce(MpiCollective& call, const at::Tensor& tensor, int root, const Reduction& op);
  absl::Status reduce_scatter(MpiCollective& call, const at::Tensor& output, const Tensors& inputs,
                              const Reduction& op);
  // `root` -1: the lists of every rank get the tensors.
  absl::Status gather(MpiCollective& call, const at::Tensor& tensor, const Tensors& outputs, int root);

  const std::shared_ptr<MpiMember> member_;
  MpiProgress progress_;
  MpiMessages messages_;
};

}  // namespace gradwire::collectives
