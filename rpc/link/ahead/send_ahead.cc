#include "gradwire/rpc/link/ahead/send_ahead.h"

#include <algorithm>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/log/contained.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/core/envelope.h"

namespace gradwire::rpc {

PartsAhead::PartsAhead(std::shared_ptr<LinkSender> link)
    : link_(std::move(link)), number_(link_->next_parted_message()) {}

// The parts are forgotten here only after the message, or the drop, has been sent: the receiver counts them
// until then.
PartsAhead::~PartsAhead() {
  if (sent_.empty()) return;
  if (!joined_) {
    const bool told = run_contained("dropping parts of a message", [&] {
      EnvelopeBox envelope;
      envelope->mutable_part()->set_number(number_);
      envelope->mutable_part()->set_dropped(true);
      // If the connection has ended, the receiver has dropped the parts.
      (void)link_->send(*envelope, {});
    });
    // The receiver would keep the parts.
    if (!told) link_->cut(no_memory());
  }
  link_->forget_parts(size_);
}

bool PartsAhead::send(std::vector<transport::Buffer> buffers) {
  const PartsInFlight::Size size(buffers);
  if (link_->closed() || !link_->count_part(size, sent_.empty())) return false;
  sent_.insert(sent_.end(), buffers.begin(), buffers.end());
  size_ += size;
  EnvelopeBox envelope;
  envelope->mutable_part()->set_number(number_);
  // If this fails, the connection has ended, and join() finds that.
  (void)link_->send(*envelope, std::move(buffers));
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

void SendAhead::start(std::shared_ptr<FenceWatch> watch, EncodedTensors tensors, FindLink find_link,
                      Done done) {
  // Not make_shared: the constructor is private.
  const std::shared_ptr<SendAhead> self(
      new SendAhead(std::move(watch), std::move(tensors), std::move(find_link), std::move(done)));
  self->wait();
}

SendAhead::SendAhead(std::shared_ptr<FenceWatch> watch, EncodedTensors tensors, FindLink find_link, Done done)
    : watch_(std::move(watch)),
      tensors_(std::move(tensors)),
      find_link_(std::move(find_link)),
      done_(std::move(done)) {
  const auto borrowed =
      std::find_if(tensors_.buffers.begin(), tensors_.buffers.end(), [](const transport::Buffer& buffer) {
        return buffer.sharing() == transport::Buffer::Sharing::kBorrowed;
      });
  sendable_ = static_cast<std::size_t>(borrowed - tensors_.buffers.begin());
}

void SendAhead::wait() noexcept {
  try {
    const bool between = next_ < tensors_.progress.size();
    StreamFencePtr fence = between ? tensors_.progress[next_].fence : tensors_.copies;
    watch_->watch(std::move(fence), [self = shared_from_this(), between](const absl::Status& copied) {
      between ? self->advance(copied) : self->finish(copied);
    });
  } catch (...) {
    finish(caught("waiting for the bytes of a message"));
  }
}

// A point has been reached, and perhaps others after it.
void SendAhead::advance(const absl::Status& copied) noexcept {
  try {
    advance_or_throw(copied);
  } catch (...) {
    finish(caught("sending a part of a message"));
  }
}

void SendAhead::advance_or_throw(const absl::Status& copied) {
  if (!copied.ok()) return finish(copied);
  const absl::StatusOr<std::size_t> end = complete();
  if (!end.ok()) return finish(end.status());
  if (next_ == tensors_.progress.size()) {
    const absl::StatusOr<bool> all = tensors_.copies->reached();
    // Then the last buffers travel with the message itself.
    if (!all.ok() || *all) return finish(all.status());
  }
  send_until(std::min(*end, sendable_));
  wait();
}

absl::StatusOr<std::size_t> SendAhead::complete() {
  std::size_t end = 0;
  for (; next_ < tensors_.progress.size(); ++next_) {
    GRADWIRE_ASSIGN_OR_RETURN(const bool reached, tensors_.progress[next_].fence->reached());
    if (!reached) break;
    end = tensors_.progress[next_].buffers;
  }
  return end;
}

void SendAhead::send_until(std::size_t end) {
  if (end <= sent_) return;
  if (ahead_ == nullptr) {
    const std::shared_ptr<LinkSender> link = find_link_();
    if (link == nullptr) {
      sendable_ = 0;
      return;
    }
    ahead_ = std::make_shared<PartsAhead>(link);
  }
  const auto begin = tensors_.buffers.begin();
  if (ahead_->send({begin + static_cast<std::ptrdiff_t>(sent_), begin + static_cast<std::ptrdiff_t>(end)})) {
    sent_ = end;
  } else {
    // The other buffers travel with the message.
    sendable_ = sent_;
  }
}

void SendAhead::finish(const absl::Status& copied) {
  tensors_.buffers.erase(tensors_.buffers.begin(),
                         tensors_.buffers.begin() + static_cast<std::ptrdiff_t>(sent_));
  tensors_.progress.clear();
  tensors_.copies = nullptr;
  tensors_.ahead = std::move(ahead_);
  Done done = std::move(done_);
  run_contained("a message whose bytes are complete", [&] { done(copied, std::move(tensors_)); });
}

}  // namespace gradwire::rpc
