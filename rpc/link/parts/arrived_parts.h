#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/mutex.h"
#include "gradwire/rpc/link/parts/parts_in_flight.h"
#include "gradwire/transport/message.h"

namespace gradwire::rpc {

// The parts that have arrived on one connection of messages that have not arrived completely (rpc.proto,
// "Parts"). An error means that the sender has violated the protocol. Thread-safe.
class ArrivedParts {
 public:
  // A Part with this number has arrived. InvalidArgument over a limit. `lost`: not OK if there was no memory
  // for its buffers.
  absl::Status add(uint64_t number, std::vector<transport::Buffer> buffers,
                   absl::Status lost = absl::OkStatus());
  // The sender gives up the message. InvalidArgument if no part of it has arrived.
  absl::Status drop(uint64_t number);
  // The rest of the message has arrived, with `rest`. Returns all of its buffers. InvalidArgument if no part
  // of it has arrived. If a part was lost, the error for which is_local_shortage() is true.
  absl::StatusOr<std::vector<transport::Buffer>> join(uint64_t number, std::vector<transport::Buffer> rest);
  // The connection has ended. Drops everything.
  void clear();
  // Number of messages of which only parts have arrived.
  std::size_t size() const;

 private:
  struct Message {
    std::vector<transport::Buffer> buffers;
    absl::Status lost;
  };
  absl::StatusOr<Message> take(uint64_t number);

  mutable Mutex mutex_;
  PartsInFlight in_flight_ ABSL_GUARDED_BY(mutex_);
  HashMap<uint64_t, Message> messages_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::rpc
