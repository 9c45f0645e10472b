#include "gradwire/rpc/link/held_messages.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace gradwire::rpc {
namespace {

uint64_t envelope_bytes(const HeldMessage& message) {
  return message.envelope == nullptr ? 0 : sizeof(EnvelopeBox) + (*message.envelope)->SpaceUsedLong();
}

}  // namespace

bool HeldMessages::push(HeldMessage message) {
  message.bytes = sizeof(message) + message.unparsed.size() + envelope_bytes(message);
  for (const transport::Buffer& buffer : message.buffers) message.bytes += sizeof(buffer) + buffer.size();
  // Written so that it cannot overflow. The count over all connections is read and raised in two steps. So
  // connections that hold a message at the same time may exceed that limit, each by one message.
  const auto fits = [&](uint64_t held, uint64_t limit) {
    return message.bytes <= limit - std::min(limit, held);
  };
  if (messages_.size() >= kMax || !fits(bytes_, limits_.max_held_bytes) ||
      !fits(bytes_in_all_, limits_.max_held_bytes_in_all)) {
    return false;
  }
  count(message.bytes);
  messages_.push_back(std::move(message));
  return true;
}

HeldMessage HeldMessages::pop() {
  HeldMessage message = std::move(messages_.front());
  messages_.pop_front();
  count(-message.bytes);
  return message;
}

void HeldMessages::put_back(HeldMessage message) {
  // A parsed message may need more memory than its serialised form. This is not checked against the limits: a
  // connection parses one held message at a time.
  message.bytes += envelope_bytes(message) - std::exchange(message.unparsed, {}).size();
  count(message.bytes);
  messages_.push_front(std::move(message));
}

std::deque<HeldMessage> HeldMessages::drop() {
  count(-bytes_);
  return std::exchange(messages_, {});
}

void HeldMessages::count(uint64_t bytes) {
  bytes_ += bytes;
  bytes_in_all_ += bytes;
}

absl::Status HeldMessages::limit_error() const {
  return absl::ResourceExhaustedError(absl::StrCat(
      "cannot hold more messages from or about workers that have not joined yet: got more than ", kMax,
      " messages, max_held_bytes=", limits_.max_held_bytes,
      " on this connection or max_held_bytes_in_all=", limits_.max_held_bytes_in_all, "; try again later"));
}

}  // namespace gradwire::rpc
