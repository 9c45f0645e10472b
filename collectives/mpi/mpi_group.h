#pragma once

#include <memory>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/collectives/group_backend.h"
#include "gradwire/collectives/mpi/mpi_collective.h"
#include "gradwire/collectives/mpi/mpi_member.h"
#include "gradwire/collectives/mpi/mpi_messages.h"

namespace gradwire::collectives {

// A group over Open MPI: every collective is MPI's nonblocking one, polled until it has ended or the deadline
// has come. A collective that has begun cannot be taken back, so after an error the tensors in it stay MPI's
// for as long as the process lives, and MPI is not finalised. MPI's collectives want one buffer where
// GroupBackend's have lists: lists that lie one behind the other are used as they are, others are copied.
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
  // `root` -1: everybody's tensor becomes the result.
  absl::Status reduce(MpiCollective& call, const at::Tensor& tensor, int root, const Reduction& op);
  // `root` -1: everybody's lists.
  absl::Status gather(MpiCollective& call, const at::Tensor& tensor, const Tensors& outputs, int root);

  const std::shared_ptr<MpiMember> member_;
  MpiProgress progress_;
  MpiMessages messages_;
};

}  // namespace gradwire::collectives
