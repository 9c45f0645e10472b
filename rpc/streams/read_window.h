#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "gradwire/rpc/streams/stream_buffer.h"

namespace gradwire::rpc {

// Decides, at the reader of a stream, when the next take is sent and what it asks for. A pure state machine,
// not thread-safe.
//
// The window bounds the items that the reader has not read, wherever they are: the items that outstanding
// takes ask for, and those that have arrived. It is divided into several takes, so that the producer works
// while an answer travels.
class ReadWindow {
 public:
  // Number of takes into which a window is divided. With 4 KiB items over tcp, 16 delivered 1.7 times as much
  // as 4 did: an answer of a quarter of the default window is copied from memory, that of a sixteenth from
  // the cache, and fewer answers on their way leave gaps. With 32 the cost of each take outweighs that.
  static constexpr uint64_t kMostTakes = 16;
  // As many takes are sent before the first answer, because the size of the items is not known yet.
  static constexpr uint64_t kFirstTakes = 4;

  // The window in items and in bytes; 0 counts as 1.
  ReadWindow(uint64_t items, uint64_t bytes)
      : items_(std::max<uint64_t>(items, 1)),
        bytes_(std::max<uint64_t>(bytes, 1)),
        per_take_{part_of(items_, StreamBuffer::kMostItems), part_of(bytes_, StreamBuffer::kMostBytes)} {}

  struct Take {
    uint64_t sequence = 0;
    TakeLimits limits;
  };
  // Whether the window has room for another take.
  bool has_room() const {
    if (outstanding_ >= (begun_ ? kMostTakes : kFirstTakes)) return false;
    // When nothing is on its way and nothing is unread, a take is always sent: the last item may have been
    // larger than the window.
    if (outstanding_ == 0 && unread_items_ == 0) return true;
    return unread_items_ + (outstanding_ + 1) * per_take_.items <= items_ &&
           unread_bytes_ + (outstanding_ + 1) * expected_bytes_ <= bytes_;
  }
  // Returns the next take if the window has room for it. The caller must send it.
  std::optional<Take> next_take() {
    if (!has_room()) return std::nullopt;
    ++outstanding_;
    return Take{next_++, per_take_};
  }

  // The answer to a take arrived, with this many items and bytes.
  void arrived(uint64_t items, uint64_t bytes) {
    --outstanding_;
    unread_items_ += items;
    unread_bytes_ += bytes;
    begun_ = true;
    // An item that is larger than the part of a take travels alone.
    if (items > 0) expected_bytes_ = std::max(per_take_.bytes, bytes / items);
  }
  // The program has read one item. The sum of `bytes` over all items is what arrived() got.
  void read(uint64_t bytes) {
    --unread_items_;
    unread_bytes_ -= bytes;
  }

 private:
  // A part of a window that fits kMostTakes times, if the window is large enough for that.
  static uint64_t part_of(uint64_t window, uint64_t most) {
    return std::clamp<uint64_t>(window / kMostTakes, 1, most);
  }

  const uint64_t items_;
  const uint64_t bytes_;
  const TakeLimits per_take_;
  // The bytes that an outstanding take will bring, by the last answer.
  uint64_t expected_bytes_ = per_take_.bytes;
  bool begun_ = false;
  uint64_t next_ = 0;
  uint64_t outstanding_ = 0;
  uint64_t unread_items_ = 0;
  uint64_t unread_bytes_ = 0;
};

}  // namespace gradwire::rpc
