#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/mutex.h"
#include "gradwire/codec/encoded_tensors.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/core/envelope.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/link/peer.h"
#include "gradwire/rpc/order/fence_watch.h"

namespace gradwire::rpc {

// A call that is not sent yet, because some of its bytes are still on their way from a device, or because it
// is behind such a call in the order of its thread (Destination::ordered).
struct CopiedCall {
  uint64_t id = 0;
  EnvelopeBox envelope;
  EncodedTensors tensors;
  bool borrow = false;
  std::shared_ptr<Peer> peer;
  absl::Time deadline;
  // The result of its copies, once they have ended.
  absl::Status copied;
};

// Waits, without a thread, until the bytes of calls are complete, and has the calls sent. Thread-safe.
class CopiedCalls {
 public:
  using Call = std::shared_ptr<CopiedCall>;

  // The parts of the agent that it uses. They must outlive it.
  struct Services {
    // Set before the first call.
    const std::shared_ptr<FenceWatch>& fences;
    // Returns the object that owns this one: callbacks use this one only while it exists.
    std::function<std::weak_ptr<void>()> self;
    // Returns the link to a worker, or nullptr. Called on the executor.
    std::function<std::shared_ptr<LinkSender>(const std::shared_ptr<Peer>& peer)> find_link;
    // Called once for each call, on the executor or inside add().
    std::function<void(CopiedCall&)> send;
  };
  explicit CopiedCalls(Services services) : services_(std::move(services)) {}

  // Whether a call with this request must wait because an earlier one of its order has not been sent.
  bool delays(uint64_t incarnation, const proto::Request& request) const;
  // Sends the call when its fence `copies` (nullptr: none) is reached and all earlier calls of its order have
  // been sent. Complete buffers may be sent ahead of it.
  void add(const Call& call);

 private:
  // The callee's incarnation and Request.order_key.
  using Key = std::pair<uint64_t, uint64_t>;
  struct Entry {
    Call call;
    bool complete = false;
  };
  struct Order {
    std::deque<Entry> waiting;
    bool sending = false;
  };

  static Key key_of(const CopiedCall& call);
  void copied(const Call& call, absl::Status status);
  // The bytes of `call` are complete. Returns the call to be sent now, or nullptr. The caller sends it, and
  // then calls next() with it, which returns the next one.
  Call complete(const Call& call);
  Call next(const Call& sent);

  const Services services_;

  mutable Mutex mutex_;
  HashMap<Key, Order> orders_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::rpc
