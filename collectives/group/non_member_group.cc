#include "gradwire/collectives/group/non_member_group.h"

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/log.h"

namespace gradwire::collectives {
namespace {

class NonMemberGroup final : public ProcessGroup {
 public:
  NonMemberGroup(std::string name, std::vector<int> ranks, Backend backend, absl::Duration timeout)
      : name_(std::move(name)), ranks_(std::move(ranks)), backend_(backend), timeout_(timeout) {}

  int rank() const override { return -1; }
  int size() const override { return static_cast<int>(ranks_.size()); }
  Backend backend() const override { return backend_; }
  const std::vector<int>& ranks() const override { return ranks_; }
  const std::string& name() const override { return name_; }
  absl::Duration timeout() const override { return timeout_; }
  std::vector<std::shared_ptr<ProcessGroup>> new_groups(std::vector<std::vector<int>>,
                                                        const NewGroupOptions&) override {
    throw Error(absl::FailedPreconditionError(absl::StrCat(
        "new_group of group \"", name_, "\": this rank is not a member of the group, whose ranks are ",
        absl::StrJoin(ranks_, ", "))));
  }

#define GRADWIRE_NOTHING(name, ...)                \
  void name(__VA_ARGS__) override { warn(#name); } \
  WorkPtr name##_async(__VA_ARGS__) override { return nothing(#name); }
  GRADWIRE_NOTHING(broadcast, at::Tensor, int)
  GRADWIRE_NOTHING(reduce, at::Tensor, int, const Reduction&)
  GRADWIRE_NOTHING(all_reduce, at::Tensor, const Reduction&)
  GRADWIRE_NOTHING(gather, at::Tensor, Tensors, int)
  GRADWIRE_NOTHING(all_gather, Tensors, at::Tensor)
  GRADWIRE_NOTHING(scatter, at::Tensor, Tensors, int)
  GRADWIRE_NOTHING(reduce_scatter, at::Tensor, Tensors, const Reduction&)
  GRADWIRE_NOTHING(all_to_all, Tensors, Tensors)
  GRADWIRE_NOTHING(barrier, const std::vector<int>&)
  GRADWIRE_NOTHING(all_gather_into_tensor, at::Tensor, at::Tensor)
  GRADWIRE_NOTHING(reduce_scatter_tensor, at::Tensor, at::Tensor, const Reduction&)
  GRADWIRE_NOTHING(all_to_all_single, at::Tensor, at::Tensor, const std::vector<int64_t>&,
                   const std::vector<int64_t>&)
  GRADWIRE_NOTHING(coalesced, std::vector<CoalescedCall>)
  GRADWIRE_NOTHING(exchange_objects, ObjectExchange)
#undef GRADWIRE_NOTHING
  void monitored_barrier(std::optional<absl::Duration>, bool) override { warn("monitored_barrier"); }
  WorkPtr broadcast_multigpu_async(Tensors, int) override { return nothing("broadcast_multigpu"); }
  WorkPtr all_reduce_multigpu_async(Tensors, const Reduction&) override {
    return nothing("all_reduce_multigpu");
  }
  WorkPtr reduce_multigpu_async(Tensors, int, const Reduction&) override {
    return nothing("reduce_multigpu");
  }
  WorkPtr all_gather_multigpu_async(std::vector<Tensors>, Tensors) override {
    return nothing("all_gather_multigpu");
  }
  void send(at::Tensor, int, int) override { warn("send"); }
  int recv(at::Tensor, int, int) override {
    warn("recv");
    return -1;
  }
  WorkPtr isend(at::Tensor, int, int) override { return nothing("isend"); }
  WorkPtr irecv(at::Tensor, int, int) override { return nothing("irecv"); }
  void check_isend(const at::Tensor&, int, int) const override {}
  void check_irecv(const at::Tensor&, int, int) const override {}
  void abort(const std::string&) override {}
  std::string flight_record() const override { return ""; }
  void destroy() override {}

 private:
  void warn(const char* operation) {
    if (warned_.exchange(true)) return;
    log(LogLevel::kWarning, operation, " on the group \"", name_, "\" of ranks ", absl::StrJoin(ranks_, ", "),
        " does nothing: this rank is not a member of the group; later calls are not reported");
  }
  WorkPtr nothing(const char* operation) {
    warn(operation);
    return std::make_shared<Work>(Future<int>(-1));
  }

  const std::string name_;
  const std::vector<int> ranks_;
  const Backend backend_;
  const absl::Duration timeout_;
  std::atomic<bool> warned_{false};
};

}  // namespace

std::shared_ptr<ProcessGroup> make_non_member_group(std::string name, std::vector<int> ranks, Backend backend,
                                                    absl::Duration timeout) {
  return std::make_shared<NonMemberGroup>(std::move(name), std::move(ranks), backend, timeout);
}

}  // namespace gradwire::collectives
