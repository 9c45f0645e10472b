#include "gradwire/rpc/streams/stream_buffer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace gradwire::rpc {

absl::Status StreamBuffer::add_take(uint64_t sequence, const TakeLimits& limits) {
  if (sequence < next_ || takes_.contains(sequence)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "take number ", sequence, " was used before: a stream has one reader, which counts its takes"));
  }
  if (sequence - next_ >= kMostTakes) {
    return absl::InvalidArgumentError(absl::StrCat("take number ", sequence, " is too far ahead: expected ",
                                                   next_, " to ", next_ + kMostTakes - 1));
  }
  if (limits.items == 0 || limits.bytes == 0) {
    return absl::InvalidArgumentError(absl::StrCat("the limits of a take must be positive, got ",
                                                   limits.items, " items and ", limits.bytes, " bytes"));
  }
  const TakeLimits bounded = {std::min(limits.items, kMostItems), std::min(limits.bytes, kMostBytes)};
  takes_.emplace(sequence, bounded);
  credit_items_ += bounded.items;
  credit_bytes_ += bounded.bytes;
  return absl::OkStatus();
}

bool StreamBuffer::has_room() const {
  return !ended_ && sizes_.size() < credit_items_ && bytes_ < credit_bytes_;
}

void StreamBuffer::push(uint64_t bytes) {
  sizes_.push_back(bytes);
  bytes_ += bytes;
}

bool StreamBuffer::can_answer() const {
  return !takes_.empty() && takes_.begin()->first == next_ && (!sizes_.empty() || ended_);
}

std::optional<StreamBuffer::Answer> StreamBuffer::next_answer() {
  if (!can_answer()) return std::nullopt;
  const TakeLimits limits = takes_.begin()->second;
  takes_.erase(takes_.begin());
  credit_items_ -= limits.items;
  credit_bytes_ -= limits.bytes;
  Answer answer;
  answer.sequence = next_++;
  uint64_t bytes = 0;
  while (!sizes_.empty() && answer.items < limits.items &&
         (answer.items == 0 || (bytes < limits.bytes && sizes_.front() <= limits.bytes - bytes))) {
    bytes += sizes_.front();
    bytes_ -= sizes_.front();
    sizes_.pop_front();
    ++answer.items;
  }
  answer.last = ended_ && sizes_.empty();
  return answer;
}

}  // namespace gradwire::rpc
