#include "gradwire/collectives/testing/local_backend.h"

#include <ATen/ops/add.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/bitwise_xor.h>
#include <ATen/ops/div.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>
#include <c10/core/GradMode.h>

#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/random_id.h"
#include "gradwire/collectives/testing/local_room.h"

namespace gradwire::collectives::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor combine(const at::Tensor& a, const at::Tensor& b, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return at::add(a, b);
    case ReduceOp::kProduct:
      return at::mul(a, b);
    case ReduceOp::kMin:
      return at::minimum(a, b);
    case ReduceOp::kMax:
      return at::maximum(a, b);
    case ReduceOp::kBand:
      return at::bitwise_and(a, b);
    case ReduceOp::kBor:
      return at::bitwise_or(a, b);
    case ReduceOp::kBxor:
      return at::bitwise_xor(a, b);
  }
  return a;
}

absl::Status copy_into(const at::Tensor& from, const at::Tensor& into) {
  if (from.scalar_type() != into.scalar_type() || from.numel() != into.numel()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the ranks' tensors differ: ", from.numel(), " elements of ", c10::toString(from.scalar_type()),
        " and ", into.numel(), " of ", c10::toString(into.scalar_type())));
  }
  if (from.nbytes() != 0) std::memmove(into.data_ptr(), from.data_ptr(), from.nbytes());
  return absl::OkStatus();
}

absl::Status check_alike(const std::vector<Contribution>& ranks, std::size_t index) {
  for (const Contribution& rank : ranks) {
    const at::Tensor& first = ranks[0].inputs[index];
    if (rank.inputs[index].numel() != first.numel() ||
        rank.inputs[index].scalar_type() != first.scalar_type()) {
      return absl::InvalidArgumentError("the ranks' tensors differ in size or dtype");
    }
  }
  return absl::OkStatus();
}

// The reduction of all ranks' inputs[index], as a tensor of one dimension.
at::Tensor reduced(const std::vector<Contribution>& ranks, std::size_t index, ReduceOp op) {
  Tensors tensors;
  for (const Contribution& rank : ranks) tensors.push_back(rank.inputs[index].detach().view({-1}));
  return reduce_reference(tensors, op);
}

absl::Status broadcast_all(std::vector<Contribution>& ranks, int root, ReduceOp) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (static_cast<int>(rank) == root) continue;
    GRADWIRE_RETURN_IF_ERROR(copy_into(ranks[root].inputs[0], ranks[rank].inputs[0]));
  }
  return absl::OkStatus();
}

absl::Status reduce_all(std::vector<Contribution>& ranks, int root, ReduceOp op) {
  GRADWIRE_RETURN_IF_ERROR(check_alike(ranks, 0));
  const at::Tensor result = reduced(ranks, 0, op);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (root >= 0 && static_cast<int>(rank) != root) continue;
    GRADWIRE_RETURN_IF_ERROR(copy_into(result, ranks[rank].inputs[0]));
  }
  return absl::OkStatus();
}

absl::Status gather_all(std::vector<Contribution>& ranks, int, ReduceOp) {
  for (Contribution& receiver : ranks) {
    for (std::size_t i = 0; i < receiver.outputs.size(); ++i) {
      GRADWIRE_RETURN_IF_ERROR(copy_into(ranks[i].inputs[0], receiver.outputs[i]));
    }
  }
  return absl::OkStatus();
}

absl::Status scatter_all(std::vector<Contribution>& ranks, int root, ReduceOp) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    GRADWIRE_RETURN_IF_ERROR(copy_into(ranks[root].inputs[rank], ranks[rank].outputs[0]));
  }
  return absl::OkStatus();
}

absl::Status reduce_scatter_all(std::vector<Contribution>& ranks, int, ReduceOp op) {
  Tensors results;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    GRADWIRE_RETURN_IF_ERROR(check_alike(ranks, i));
    results.push_back(reduced(ranks, i, op));
  }
  for (std::size_t i = 0; i < ranks.size(); ++i)
    GRADWIRE_RETURN_IF_ERROR(copy_into(results[i], ranks[i].outputs[0]));
  return absl::OkStatus();
}

absl::Status exchange_all(std::vector<Contribution>& ranks, int, ReduceOp) {
  for (std::size_t to = 0; to < ranks.size(); ++to) {
    for (std::size_t from = 0; from < ranks.size(); ++from) {
      GRADWIRE_RETURN_IF_ERROR(copy_into(ranks[from].inputs[to], ranks[to].outputs[from]));
    }
  }
  return absl::OkStatus();
}

class LocalBackend : public GroupBackend {
 public:
  LocalBackend(std::shared_ptr<Room> room, int rank) : room_(std::move(room)), rank_(rank) {}
  ~LocalBackend() override { room_->leave(rank_); }

  absl::Status broadcast(at::Tensor tensor, int root, absl::Time deadline) override {
    return room_->meet(rank_, {absl::StrCat("broadcast from ", root), {tensor}, {}}, &broadcast_all, root,
                       ReduceOp::kSum, deadline);
  }
  absl::Status reduce(at::Tensor tensor, int root, const Reduction& op, absl::Time deadline) override {
    return room_->meet(rank_, {absl::StrCat("reduce to ", root, " by ", to_string(op.op)), {tensor}, {}},
                       &reduce_all, root, op.op, deadline);
  }
  absl::Status all_reduce(at::Tensor tensor, const Reduction& op, absl::Time deadline) override {
    return room_->meet(rank_, {absl::StrCat("all_reduce by ", to_string(op.op)), {tensor}, {}}, &reduce_all,
                       -1, op.op, deadline);
  }
  absl::Status gather(at::Tensor tensor, Tensors outputs, int root, absl::Time deadline) override {
    return room_->meet(rank_, {absl::StrCat("gather at ", root), {tensor}, std::move(outputs)}, &gather_all,
                       root, ReduceOp::kSum, deadline);
  }
  absl::Status all_gather(at::Tensor tensor, Tensors outputs, absl::Time deadline) override {
    return room_->meet(rank_, {"all_gather", {tensor}, std::move(outputs)}, &gather_all, -1, ReduceOp::kSum,
                       deadline);
  }
  absl::Status scatter(at::Tensor tensor, Tensors inputs, int root, absl::Time deadline) override {
    return room_->meet(rank_, {absl::StrCat("scatter from ", root), std::move(inputs), {tensor}},
                       &scatter_all, root, ReduceOp::kSum, deadline);
  }
  absl::Status reduce_scatter(at::Tensor output, Tensors inputs, const Reduction& op,
                              absl::Time deadline) override {
    return room_->meet(rank_,
                       {absl::StrCat("reduce_scatter by ", to_string(op.op)), std::move(inputs), {output}},
                       &reduce_scatter_all, -1, op.op, deadline);
  }
  absl::Status all_to_all(Tensors outputs, Tensors inputs, absl::Time deadline) override {
    return room_->meet(rank_, {"all_to_all", std::move(inputs), std::move(outputs)}, &exchange_all, -1,
                       ReduceOp::kSum, deadline);
  }
  absl::Status barrier(absl::Time deadline) override {
    return room_->meet(
        rank_, {"barrier", {}, {}},
        +[](std::vector<Contribution>&, int, ReduceOp) { return absl::OkStatus(); }, -1, ReduceOp::kSum,
        deadline);
  }
  Future<void> send(at::Tensor tensor, int dst, int tag, absl::Time) override {
    return room_->send(rank_, dst, tag, tensor);
  }
  Future<int> receive(at::Tensor tensor, int src, int tag, absl::Time deadline) override {
    return room_->receive(rank_, src, tag, std::move(tensor), deadline);
  }
  void abort(const absl::Status& reason) override { room_->abort(reason); }

 private:
  const std::shared_ptr<Room> room_;
  const int rank_;
};

// The rooms of all local groups that exist, by a random id, which the group's first rank writes to the store.
struct Rooms {
  Mutex mutex;
  std::map<uint64_t, std::weak_ptr<Room>> open ABSL_GUARDED_BY(mutex);
};

Rooms& rooms() {
  static Rooms* instance = new Rooms;
  return *instance;
}

}  // namespace

at::Tensor reduce_reference(const std::vector<at::Tensor>& tensors, ReduceOp op) {
  const c10::NoGradGuard no_grad;
  const at::ScalarType dtype = tensors[0].scalar_type();
  // Half and bfloat16 are combined in float, and rounded once.
  const bool narrow = dtype == at::kHalf || dtype == at::kBFloat16;
  const auto widened = [narrow](const at::Tensor& tensor) { return narrow ? tensor.to(at::kFloat) : tensor; };
  at::Tensor result = widened(tensors[0]).clone();
  for (std::size_t i = 1; i < tensors.size(); ++i) result = combine(result, widened(tensors[i]), op);
  if (op == ReduceOp::kAvg) result = at::div(result, static_cast<double>(tensors.size()));
  return result.to(dtype);
}

absl::StatusOr<std::unique_ptr<GroupBackend>> make_local_backend(const BackendContext& context) {
  GRADWIRE_ASSIGN_OR_RETURN(const std::string text,
                            context.store->try_compare_set("local_room", "", absl::StrCat(random_id())));
  uint64_t id = 0;
  if (!absl::SimpleAtoi(text, &id))
    return absl::InternalError(absl::StrCat("malformed room id in the store: ", text));
  MutexLock lock(rooms().mutex);
  std::weak_ptr<Room>& slot = rooms().open[id];
  std::shared_ptr<Room> room = slot.lock();
  if (room == nullptr) slot = room = std::make_shared<Room>(context.size);
  return std::make_unique<LocalBackend>(std::move(room), context.rank);
}

void use_local_backend(Backend name) { register_backend(name, &make_local_backend); }

}  // namespace gradwire::collectives::testing
