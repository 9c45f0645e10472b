#include "gradwire/rpc/link/parts/send_ahead.h"

#include <algorithm>
#include <utility>

#include "gradwire/base/error.h"

namespace gradwire::rpc {

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

void SendAhead::wait() {
  const bool between = next_ < tensors_.progress.size();
  StreamFencePtr fence = between ? tensors_.progress[next_].fence : tensors_.copies;
  watch_->watch(std::move(fence), [self = shared_from_this(), between](const absl::Status& copied) {
    between ? self->advance(copied) : self->finish(copied);
  });
}

// A point has been reached, and perhaps others after it.
void SendAhead::advance(const absl::Status& copied) {
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
  done(copied, std::move(tensors_));
}

}  // namespace gradwire::rpc
