#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/strand.h"
#include "gradwire/rpc/call_context.h"

namespace gradwire::rpc {

class ServedCall;

// The calls that wait for their turn on a serial object, and the calls that they wait for: for those who
// search for deadlocks. A call enters only if another one runs on its object. Thread-safe.
class TurnWaits {
 public:
  // The call that runs on the object.
  struct Holder {
    CallIdentity call;
    std::string callee;
  };
  struct Wait {
    CallIdentity waiter;
    Holder holder;
  };

  // `call` waits for its turn on `strand`. It leaves the table by itself when ServedCall::Waits::turn is
  // claimed.
  void add(const std::shared_ptr<ServedCall>& call, const std::shared_ptr<Strand>& strand);
  std::vector<Wait> waits() const;

 private:
  struct Entry {
    std::weak_ptr<ServedCall> call;
    std::weak_ptr<Strand> strand;
  };

  mutable Mutex mutex_;
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mutex_);
  // Number of entries at which those that have left are removed.
  std::size_t sweep_at_ ABSL_GUARDED_BY(mutex_) = 8;
};

}  // namespace gradwire::rpc
