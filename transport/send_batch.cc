#include "gradwire/transport/send_batch.h"

#include <algorithm>
#include <utility>

namespace gradwire::transport {
namespace {

thread_local SendBatch* current_batch = nullptr;

}  // namespace

SendBatch::SendBatch(Scope scope) : scope_(scope) {
  if (current_batch != nullptr) return;
  outermost_ = true;
  current_batch = this;
}

SendBatch::~SendBatch() {
  if (!outermost_) return;
  flush_members();
  current_batch = nullptr;
}

void SendBatch::flush() {
  if (current_batch != nullptr) current_batch->flush_members();
}

SendBatch* SendBatch::current() { return current_batch; }

void SendBatch::add(std::shared_ptr<Member> member) {
  if (std::find(members_.begin(), members_.end(), member) == members_.end()) {
    members_.push_back(std::move(member));
  }
}

void SendBatch::flush_members() {
  // The destruction of sent messages may send more messages.
  // flush_batch() runs code of users, which may add members to this batch. So take the list, and repeat
  // until nothing was added.
  while (!members_.empty()) {
    const auto members = std::exchange(members_, {});
    for (const std::shared_ptr<Member>& member : members) member->flush_batch();
  }
}

}  // namespace gradwire::transport
