#include "gradwire/rpc/caller/copied/copied_calls.h"

#include "gradwire/rpc/link/ahead/send_ahead.h"

namespace gradwire::rpc {

bool CopiedCalls::delays(uint64_t incarnation, const proto::Request& request) const {
  MutexLock lock(mutex_);
  return orders_.contains(Key(incarnation, request.order_key()));
}

void CopiedCalls::add(const Call& call) {
  if (call->envelope->request().order_key() != 0) {
    MutexLock lock(mutex_);
    orders_[key_of(*call)].waiting.push_back({call, false});
  }
  if (call->tensors.copies == nullptr) {
    copied(call, absl::OkStatus());
    return;
  }
  SendAhead::start(
      services_.fences, std::move(call->tensors),
      [this, peer = call->peer, self = services_.self()]() -> std::shared_ptr<LinkSender> {
        const std::shared_ptr<void> alive = self.lock();
        return alive == nullptr ? nullptr : services_.find_link(peer);
      },
      [this, call, self = services_.self()](const absl::Status& status, EncodedTensors tensors) {
        const std::shared_ptr<void> alive = self.lock();
        if (alive == nullptr) return;
        call->tensors = std::move(tensors);
        copied(call, status);
      });
}

void CopiedCalls::copied(const Call& call, absl::Status status) {
  call->copied = std::move(status);
  if (call->envelope->request().order_key() == 0) {
    services_.send(*call);
    return;
  }
  for (Call now = complete(call); now != nullptr; now = next(now)) services_.send(*now);
}

CopiedCalls::Call CopiedCalls::complete(const Call& call) {
  MutexLock lock(mutex_);
  Order& order = orders_[key_of(*call)];
  for (Entry& entry : order.waiting) {
    if (entry.call == call) entry.complete = true;
  }
  // If another thread sends a call of this order, it finds the next one itself.
  if (order.sending || !order.waiting.front().complete) return nullptr;
  order.sending = true;
  return order.waiting.front().call;
}

CopiedCalls::Call CopiedCalls::next(const Call& sent) {
  MutexLock lock(mutex_);
  const auto found = orders_.find(key_of(*sent));
  Order& order = found->second;
  order.waiting.pop_front();
  if (order.waiting.empty()) {
    orders_.erase(found);
    return nullptr;
  }
  if (order.waiting.front().complete) return order.waiting.front().call;
  order.sending = false;
  return nullptr;
}

CopiedCalls::Key CopiedCalls::key_of(const CopiedCall& call) {
  return {call.peer->worker.incarnation, call.envelope->request().order_key()};
}

}  // namespace gradwire::rpc
