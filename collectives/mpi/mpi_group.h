#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/collectives/group_backend.h"
#include "gradwire/collectives/mpi/mpi_member.h"
#include "gradwire/collectives/mpi/mpi_messages.h"

namespace gradwire::collectives {

// A group over Open MPI: every collective is MPI's nonblocking one, looked at until it has ended or the deadline has come.
// A collective that has begun cannot be taken back, so after an error the tensors in it stay MPI's for as long as the
// process lives, and MPI is not finalised. MPI's collectives want one buffer where GroupBackend's have lists: lists that
// lie one behind the other are used as they are, others are copied.
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
  // What is under way in one collective.
  struct Call {
    const char* name;
    absl::Time deadline;
    // Kept while MPI uses them.
    Tensors tensors;
    std::vector<MPI_Request> requests;
    std::vector<MPI_Status> statuses;
  };

  // Around each collective: its number, and whether the group is whole.
  template <class Collective>
  absl::Status numbered(Collective collective) {
    GRADWIRE_RETURN_IF_ERROR(member_->refusal());
    ++begun_;
    GRADWIRE_RETURN_IF_ERROR(collective());
    finished_.store(begun_, std::memory_order_relaxed);
    return absl::OkStatus();
  }
  // Begins a nonblocking call of MPI's and waits for it; `start` is given the request.
  template <class Start>
  absl::Status run(Call& call, Start start) {
    call.requests.assign(1, MPI_REQUEST_NULL);
    GRADWIRE_RETURN_IF_ERROR(
        begun(call, member_->runtime().call(call.name, [&] { return start(&call.requests[0]); })));
    return finish(call);
  }
  absl::Status begun(Call& call, const absl::Status& status);
  absl::Status finish(Call& call);
  absl::Status overdue(const Call& call);
  absl::Status broken_off(Call& call, const absl::Status& reason);

  absl::Status do_broadcast(const at::Tensor& tensor, int root, absl::Time deadline);
  // `root` -1: everybody's tensor becomes the result.
  absl::Status do_reduce(const at::Tensor& tensor, int root, const Reduction& op, absl::Time deadline);
  // `root` -1: everybody's lists.
  absl::Status do_gather(const at::Tensor& tensor, const Tensors& outputs, int root, absl::Time deadline);
  absl::Status do_scatter(const at::Tensor& tensor, const Tensors& inputs, int root, absl::Time deadline);
  absl::Status do_reduce_scatter(const at::Tensor& output, const Tensors& inputs, const Reduction& op,
                                 absl::Time deadline);
  absl::Status do_all_to_all(const Tensors& outputs, const Tensors& inputs, absl::Time deadline);
  absl::Status begin_message(Call& call, bool sends, const at::Tensor& tensor, int peer);
  absl::Status check_received(const Call& call, const Tensors& outputs);

  const std::shared_ptr<MpiMember> member_;
  // By the one thread that calls collectives; read when the group is left.
  uint64_t begun_ = 0;
  std::atomic<uint64_t> finished_{0};
  MpiMessages messages_;
};

}  // namespace gradwire::collectives
