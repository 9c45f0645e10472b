#include "gradwire/rpc/link/parts/parts_ahead.h"

#include <utility>

#include "gradwire/proto/rpc.pb.h"

namespace gradwire::rpc {

PartsAhead::PartsAhead(std::shared_ptr<LinkSender> link)
    : link_(std::move(link)), number_(link_->next_parted_message()) {}

// The parts are forgotten here only after the message, or the drop, has been sent: the receiver counts them
// until then.
PartsAhead::~PartsAhead() {
  if (sent_.empty()) return;
  if (!joined_) {
    proto::Envelope envelope;
    envelope.mutable_part()->set_number(number_);
    envelope.mutable_part()->set_dropped(true);
    // If the connection has ended, the receiver has dropped the parts.
    (void)link_->send(envelope, {});
  }
  link_->forget_parts(size_);
}

bool PartsAhead::send(std::vector<transport::Buffer> buffers) {
  const PartsInFlight::Size size(buffers);
  if (link_->closed() || !link_->count_part(size, sent_.empty())) return false;
  sent_.insert(sent_.end(), buffers.begin(), buffers.end());
  size_ += size;
  proto::Envelope envelope;
  envelope.mutable_part()->set_number(number_);
  // If this fails, the connection has ended, and join() finds that.
  (void)link_->send(envelope, std::move(buffers));
  return true;
}

uint64_t PartsAhead::join(uint64_t link, std::vector<transport::Buffer>& buffers) {
  if (sent_.empty()) return 0;
  if (link == link_->number() && !link_->closed()) {
    joined_ = true;
    return number_;
  }
  buffers.insert(buffers.begin(), sent_.begin(), sent_.end());
  return 0;
}

}  // namespace gradwire::rpc
