#include "gradwire/rpc/link/parts/arrived_parts.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"

namespace gradwire::rpc {

absl::Status ArrivedParts::add(uint64_t number, std::vector<transport::Buffer> buffers, absl::Status lost) {
  if (number == 0 || (buffers.empty() && lost.ok()))
    return absl::InvalidArgumentError("a part of a message has no number or no buffers");
  const PartsInFlight::Size size(buffers);
  MutexLock lock(mutex_);
  const auto found = messages_.find(number);
  if (!in_flight_.add(size, found == messages_.end())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "too many parts of incomplete messages: expected at most ", PartsInFlight::kMaxMessages,
        " messages, ", PartsInFlight::kMaxBuffers, " buffers and ", PartsInFlight::kMaxBytes, " bytes"));
  }
  Message& message = found == messages_.end() ? messages_[number] : found->second;
  message.lost.Update(std::move(lost));
  std::vector<transport::Buffer>& all = message.buffers;
  all.insert(all.end(), std::make_move_iterator(buffers.begin()), std::make_move_iterator(buffers.end()));
  return absl::OkStatus();
}

absl::Status ArrivedParts::drop(uint64_t number) { return take(number).status(); }

absl::StatusOr<std::vector<transport::Buffer>> ArrivedParts::join(uint64_t number,
                                                                  std::vector<transport::Buffer> rest) {
  auto all = take(number);
  GRADWIRE_RETURN_IF_ERROR(all.status());
  GRADWIRE_RETURN_IF_ERROR(all->lost);
  std::vector<transport::Buffer>& buffers = all->buffers;
  buffers.insert(buffers.end(), std::make_move_iterator(rest.begin()), std::make_move_iterator(rest.end()));
  return std::move(buffers);
}

void ArrivedParts::clear() {
  HashMap<uint64_t, Message> dropped;
  MutexLock lock(mutex_);
  in_flight_ = PartsInFlight();
  dropped.swap(messages_);
}

std::size_t ArrivedParts::size() const {
  MutexLock lock(mutex_);
  return messages_.size();
}

absl::StatusOr<ArrivedParts::Message> ArrivedParts::take(uint64_t number) {
  MutexLock lock(mutex_);
  const auto found = messages_.find(number);
  if (found == messages_.end())
    return absl::InvalidArgumentError(absl::StrCat("no part of message ", number, " has arrived"));
  Message message = std::move(found->second);
  messages_.erase(found);
  in_flight_.remove(PartsInFlight::Size(message.buffers));
  return message;
}

}  // namespace gradwire::rpc
