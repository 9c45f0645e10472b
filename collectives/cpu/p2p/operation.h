#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/base/future.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/collectives/cpu/span.h"

// Messages under way, as an Endpoint keeps them. The lock that guards the endpoint guards them too; `data` is used outside
// of it by whoever performs an effect.
namespace gradwire::collectives::cpu {

// A send or a receive. Its future is that of `promise`.
template <typename Result>
struct Operation {
  Operation(std::shared_ptr<Executor> executor, int peer, uint64_t channel, int64_t tag, Span data,
            absl::Time deadline)
      : peer(peer),
        channel(channel),
        tag(tag),
        data(data),
        deadline(deadline),
        promise(std::move(executor)) {}

  const int peer;
  const uint64_t channel;
  const int64_t tag;
  const Span data;
  const absl::Time deadline;
  Promise<Result> promise;
  // Nobody uses `data` any more.
  std::atomic<bool> done{false};

  uint64_t id = 0;
};

// A message from this rank to `peer`.
struct Send : Operation<void> {
  enum class Stage {
    kQueued,      // In the outbox; the receiver knows nothing of it.
    kAnnouncing,  // The carrier sends the announcement.
    kAnnounced,   // The receiver has not answered.
    kCleared,     // In the outbox, with its data: the receiver has asked for it.
    kSending,     // The carrier sends the data.
  };
  using Operation::Operation;

  Stage stage = Stage::kQueued;
  bool eager = false;    // It counts in the window.
  bool counted = false;  // It counts as announced: neither answered nor taken back.
  // What happened while the carrier was sending: the receiver asked for the data, or the message ended.
  bool cleared = false;
  bool nacked = false;
  absl::Status ended;
};

// A receive from `peer`, which may be kAnyRank; the rank that the message came from.
struct Receive : Operation<int> {
  using Operation::Operation;
};

using SendPtr = std::shared_ptr<Send>;
using ReceivePtr = std::shared_ptr<Receive>;

}  // namespace gradwire::collectives::cpu
