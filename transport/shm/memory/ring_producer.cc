#include "gradwire/transport/shm/memory/ring_producer.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace gradwire::transport {
namespace {

constexpr std::size_t kFirstLinePayload = kLineBytes - sizeof(uint64_t);

}  // namespace

RingProducer::RingProducer(SharedMemory memory, std::size_t ring_bytes)
    : memory_(std::move(memory)),
      line_count_(ring_bytes / kLineBytes),
      line_mask_(line_count_ - 1),
      max_payload_(max_record_payload(ring_bytes)) {
  // No thread polls the ring yet.
  // A relaxed store is enough: the peer maps the memory only after it has received its descriptor.
  shared_word<uint32_t>(base() + kArmedOffset).store(1, std::memory_order_relaxed);
}

bool RingProducer::has_room(std::size_t payload) {
  const std::size_t lines = lines_of(payload);
  if (lines <= free_lines()) return true;
  // Acquire: pairs with the release in RingConsumer::release(). The consumer's zeros are then visible, and
  // cannot overwrite a record that is written into the same lines.
  const uint64_t tail = shared_word<uint64_t>(base() + kTailOffset).load(std::memory_order_acquire);
  // A valid tail never decreases and is never beyond the written lines.
  if (tail - tail_ > head_ - tail_) {
    broken_ = true;
    return false;
  }
  tail_ = tail;
  return lines <= free_lines();
}

std::size_t RingProducer::room() const {
  return std::min(max_payload_, free_lines() * kLineBytes - sizeof(uint64_t));
}

void RingProducer::begin(std::size_t payload) {
  length_ = payload;
  written_ = 0;
}

void RingProducer::append(const void* data, std::size_t bytes) {
  const char* from = static_cast<const char*>(data);
  if (written_ < kFirstLinePayload && bytes > 0) {
    const std::size_t part = std::min(bytes, kFirstLinePayload - written_);
    std::memcpy(first_ + sizeof(uint64_t) + written_, from, part);
    written_ += part;
    from += part;
    bytes -= part;
  }
  while (bytes > 0) {
    // Copy up to the end of the ring, then continue at its beginning.
    const std::size_t offset = written_ + sizeof(uint64_t);
    const std::size_t at = (head_ & line_mask_) * kLineBytes + offset;
    const std::size_t ring_bytes = line_count_ * kLineBytes;
    const std::size_t start = at & (ring_bytes - 1);
    const std::size_t part = std::min(bytes, ring_bytes - start);
    std::memcpy(base() + kLinesOffset + start, from, part);
    written_ += part;
    from += part;
    bytes -= part;
  }
}

void RingProducer::publish(RecordKind kind, uint32_t buffers) {
  // The record becomes visible with one store:
  // 1. Copy the payload of the first line. The rest was written by append().
  // 2. Store the first 8 bytes with release. It pairs with the acquire in RingConsumer::peek(): a consumer
  //    that sees the word sees the whole record.
  const RecordWord word{static_cast<uint8_t>(kind), buffers, static_cast<uint32_t>(length_)};
  char* const to = line(head_);
  std::memcpy(to + sizeof(uint64_t), first_ + sizeof(uint64_t), std::min(length_, kFirstLinePayload));
  shared_word<uint64_t>(to).store(word.encode(), std::memory_order_release);
  head_ += lines_of(length_);
}

bool RingProducer::take_armed() {
  // Pairs with the consumer's fence between arm() and peek().
  full_fence();
  auto armed = shared_word<uint32_t>(base() + kArmedOffset);
  return armed.load(std::memory_order_relaxed) != 0 && armed.exchange(0) != 0;
}

void RingProducer::ask_for_room() {
  // Pairs with the fence in RingConsumer::release(): either the consumer sees the request, or the
  // has_room() that follows here sees the new tail.
  shared_word<uint32_t>(base() + kRoomOffset).store(1, std::memory_order_relaxed);
  full_fence();
}

}  // namespace gradwire::transport
