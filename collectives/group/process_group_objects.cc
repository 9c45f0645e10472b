// The collectives of objects, which are encoded as bytes. An exchange has two steps: first the sizes, then
// the bytes. Every rank checks the sizes against the limit before it allocates memory for the bytes.
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/collectives/group/object_bytes.h"
#include "gradwire/collectives/group/process_group_impl.h"

namespace gradwire::collectives {
namespace {

using ExchangeKind = ObjectExchange::Kind;
using Tensors = std::vector<at::Tensor>;

// Sent instead of a size: the object could not be encoded.
constexpr int64_t kNoObject = -1;

Operation operation_of(ExchangeKind kind) {
  switch (kind) {
    case ExchangeKind::kBroadcast:
      return Operation::kBroadcastObject;
    case ExchangeKind::kAllGather:
      return Operation::kAllGatherObject;
    case ExchangeKind::kGather:
      return Operation::kGatherObject;
    case ExchangeKind::kScatter:
      return Operation::kScatterObject;
  }
  return Operation::kBroadcastObject;
}

int64_t size_of(const at::Tensor& bytes) { return bytes.defined() ? bytes.numel() : kNoObject; }

// This rank's part of one exchange.
class Exchange {
 public:
  Exchange(RunContext& run, ObjectExchange& exchange, int root, c10::Device device)
      : run_(run), exchange_(exchange), root_(root), device_(device) {}

  absl::Status run() {
    const c10::NoGradGuard no_grad;
    GRADWIRE_RETURN_IF_ERROR(exchange_sizes());
    GRADWIRE_RETURN_IF_ERROR(check_sizes());
    return exchange_.kind == ExchangeKind::kBroadcast ? broadcast() : exchange_bytes();
  }

 private:
  bool at_root() const { return run_.rank == root_; }
  bool from_root() const {
    return exchange_.kind == ExchangeKind::kBroadcast || exchange_.kind == ExchangeKind::kScatter;
  }

  at::Tensor make(int64_t count, at::ScalarType dtype) const {
    return at::empty({count}, at::TensorOptions().dtype(dtype).device(device_));
  }

  absl::Status exchange_sizes() {
    Tensors all;
    if (from_root()) {
      at::Tensor sizes = at::empty({exchange_.kind == ExchangeKind::kScatter ? run_.size : 1}, at::kLong);
      if (at_root()) {
        for (int64_t i = 0; i < sizes.numel(); ++i) {
          sizes.mutable_data_ptr<int64_t>()[i] = size_of(exchange_.sent[static_cast<std::size_t>(i)]);
        }
      }
      all.push_back(sizes.to(device_));
      GRADWIRE_RETURN_IF_ERROR(operations::broadcast(run_, all[0], root_));
    } else {
      at::Tensor own = at::empty({1}, at::kLong);
      own.mutable_data_ptr<int64_t>()[0] = size_of(exchange_.sent[0]);
      for (int rank = 0; rank < run_.size; ++rank) all.push_back(make(1, at::kLong));
      GRADWIRE_RETURN_IF_ERROR(operations::all_gather(run_, own.to(device_), all));
    }
    run_.order_behind_last_step();
    for (const at::Tensor& tensor : all) {
      const at::Tensor on_host = tensor.cpu();
      const int64_t* values = on_host.const_data_ptr<int64_t>();
      sizes_.insert(sizes_.end(), values, values + on_host.numel());
    }
    return absl::OkStatus();
  }

  // Every rank has the same sizes and returns the same verdict. So no rank waits for bytes that another rank
  // refuses to send. The running total is checked at each step, so it does not overflow.
  absl::Status check_sizes() const {
    int64_t total = 0;
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      const std::string sender = from_root() ? absl::StrCat("rank ", root_) : absl::StrCat("rank ", i);
      if (sizes_[i] == kNoObject)
        return absl::InvalidArgumentError(absl::StrCat(sender, " could not encode its object"));
      if (sizes_[i] < 0 || sizes_[i] > kMaxObjectBytes || (total += sizes_[i]) > kMaxObjectBytes) {
        return absl::InvalidArgumentError(
            absl::StrCat("the objects are too large: the object of ", sender, " has ", sizes_[i],
                         " bytes; the limit for all objects together is ", kMaxObjectBytes, " bytes"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status broadcast() {
    at::Tensor bytes = at_root() ? exchange_.sent[0].to(device_) : make(sizes_[0], at::kByte);
    GRADWIRE_RETURN_IF_ERROR(operations::broadcast(run_, bytes, root_));
    run_.order_behind_last_step();
    return exchange_.receive({bytes.cpu()});
  }

  // All-gather, gather and scatter of objects are one all-to-all: the sizes differ between ranks, and ranks
  // that exchange nothing have empty tensors.
  absl::Status exchange_bytes() {
    Tensors inputs;
    Tensors outputs;
    for (int other = 0; other < run_.size; ++other) {
      inputs.push_back(input_for(other));
      outputs.push_back(output_from(other));
    }
    GRADWIRE_RETURN_IF_ERROR(operations::all_to_all(run_, outputs, std::move(inputs)));
    run_.order_behind_last_step();
    if (exchange_.kind == ExchangeKind::kScatter)
      return exchange_.receive({outputs[static_cast<std::size_t>(root_)].cpu()});
    if (exchange_.kind == ExchangeKind::kGather && !at_root()) return exchange_.receive({});
    for (at::Tensor& output : outputs) output = output.cpu();
    return exchange_.receive(std::move(outputs));
  }

  at::Tensor input_for(int other) const {
    const bool sends = exchange_.kind == ExchangeKind::kAllGather ||
                       (exchange_.kind == ExchangeKind::kGather && other == root_) ||
                       (exchange_.kind == ExchangeKind::kScatter && at_root());
    if (!sends) return make(0, at::kByte);
    return exchange_.sent[exchange_.kind == ExchangeKind::kScatter ? static_cast<std::size_t>(other) : 0].to(
        device_);
  }

  at::Tensor output_from(int other) const {
    switch (exchange_.kind) {
      case ExchangeKind::kAllGather:
        return make(sizes_[static_cast<std::size_t>(other)], at::kByte);
      case ExchangeKind::kGather:
        return make(at_root() ? sizes_[static_cast<std::size_t>(other)] : 0, at::kByte);
      default:
        return make(other == root_ ? sizes_[static_cast<std::size_t>(run_.rank)] : 0, at::kByte);
    }
  }

  RunContext& run_;
  ObjectExchange& exchange_;
  const int root_;
  const c10::Device device_;
  // Sizes in bytes. kAllGather, kGather: of each rank's object. kScatter: of the root's object for each rank.
  // kBroadcast: of the root's object.
  std::vector<int64_t> sizes_;
};

absl::Status check_count(const ObjectExchange& exchange, bool at_root, int size) {
  const bool sends =
      at_root || exchange.kind == ExchangeKind::kAllGather || exchange.kind == ExchangeKind::kGather;
  const std::size_t expected = !sends                                    ? 0
                               : exchange.kind == ExchangeKind::kScatter ? static_cast<std::size_t>(size)
                                                                         : 1;
  if (exchange.sent.size() == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("wrong number of objects on this rank: got ",
                                                 exchange.sent.size(), ", expected ", expected));
}

}  // namespace

ProcessGroup::WorkPtr ProcessGroupImpl::begin_exchange_objects(Mode mode, ObjectExchange exchange) {
  OperationRecord record;
  record.operation = operation_of(exchange.kind);
  int root = 0;
  if (exchange.kind != ExchangeKind::kAllGather) {
    root =
        check_rank(record.operation, exchange.root, exchange.kind == ExchangeKind::kGather ? "dst" : "src");
    record.peer = exchange.root;
  }
  check(record.operation, check_count(exchange, root == rank(), size()));
  const c10::Device device = own_device_;
  return runner_->perform(mode, record, device,
                          [exchange = std::move(exchange), root, device](RunContext& run) mutable {
                            return Exchange(run, exchange, root, device).run();
                          });
}

}  // namespace gradwire::collectives
