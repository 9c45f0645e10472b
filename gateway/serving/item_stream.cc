#include "gradwire/gateway/serving/item_stream.h"

#include <utility>

#include "gradwire/gateway/values/tensors.h"

namespace gradwire::gateway {
namespace {

// A list of numbers may be packed.
int items_in(const proto::Value& values) {
  switch (values.kind_case()) {
    case proto::Value::kList:
      return values.list().values_size();
    case proto::Value::kIntegers:
      return values.integers().values_size();
    case proto::Value::kReals:
      return values.reals().values_size();
    default:
      return -1;
  }
}

proto::Value item_at(const proto::Value& values, int index) {
  if (values.has_list()) return values.list().values(index);
  proto::Value item;
  if (values.has_integers()) {
    item.set_integer(values.integers().values(index));
  } else {
    item.set_real(values.reals().values(index));
  }
  return item;
}

}  // namespace

absl::StatusOr<std::optional<ItemStream::Item>> ItemStream::item_of(const Next& next) {
  if (next.batch == nullptr) {
    if (!next.status.ok()) return next.status;
    return std::nullopt;
  }
  const Batch& batch = static_cast<const Batch&>(*next.batch);
  return Item{batch.answer, item_at(*batch.values, static_cast<int>(next.index))};
}

void ItemStream::next(Done done) {
  bool room = false;
  const std::optional<Next> there = try_next(room);
  if (room) refill();
  if (there) {
    done(item_of(*there));
    return;
  }
  wait([done = std::move(done)](const Next& next) mutable { done(item_of(next)); });
}

void ItemStream::refill() {
  const auto self = std::static_pointer_cast<ItemStream>(shared_from_this());
  const std::shared_ptr<Executor> tasks = executor();
  if (tasks == nullptr || !tasks->post_clean([self] { self->send_takes(); })) {
    close(absl::UnavailableError("the gateway's worker shuts down"));
  }
}

absl::StatusOr<std::shared_ptr<rpc::StreamReader::Arrived>> ItemStream::decode(
    rpc::IncomingPayload& in) const {
  if (in.payload->values_size() != 1 || !in.payload->values(0).has_list() ||
      in.payload->values(0).list().values_size() != 2 ||
      !in.payload->values(0).list().values(1).has_boolean()) {
    return absl::InvalidArgumentError("malformed answer: expected a list of items and a bool");
  }
  auto batch = std::make_shared<Batch>();
  batch->answer = std::make_shared<rpc::IncomingPayload>(std::move(in));
  const proto::ValueList& list = batch->answer->payload->values(0).list();
  batch->values = &list.values(0);
  const int items = items_in(*batch->values);
  if (items < 0) return absl::InvalidArgumentError("malformed answer: expected a list of items");
  batch->items = static_cast<std::size_t>(items);
  batch->last = list.values(1).boolean();
  batch->bytes = batch->answer->payload->ByteSizeLong();
  if (batch->answer->tensors != nullptr && tensor_bridge() != nullptr) {
    batch->bytes += tensor_bridge()->bytes(*batch->answer->tensors);
  }
  return batch;
}

}  // namespace gradwire::gateway
