#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "gradwire/codec/encoder.h"
#include "gradwire/proto/value.pb.h"
#include "gradwire/rpc/streams/stream_reader.h"

namespace gradwire::gateway {

// Reads a stream of a worker whose items have a type that this program need not know. Thread-safe; one
// next() at a time.
class ItemStream final : public rpc::StreamReader {
 public:
  // One item, as it travels between workers.
  struct Item {
    // The answer that contains the item, with its tensors and references.
    std::shared_ptr<rpc::IncomingPayload> answer;
    proto::Value value;
  };
  // nullopt after the last item.
  using Done = absl::AnyInvocable<void(absl::StatusOr<std::optional<Item>>)>;

  using StreamReader::StreamReader;

  // Calls `done` with the next item, at once or on the thread that receives it. Does not block.
  void next(Done done);

 private:
  struct Batch final : Arrived {
    std::shared_ptr<rpc::IncomingPayload> answer;
    // The value with the items, in the answer.
    const proto::Value* values = nullptr;
  };

  static absl::StatusOr<std::optional<Item>> item_of(const Next& next);
  absl::StatusOr<std::shared_ptr<Arrived>> decode(rpc::IncomingPayload& in) const override;
  // Asks the worker for more items, on the executor, because sending may block.
  void refill();
};

}  // namespace gradwire::gateway
