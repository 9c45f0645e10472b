#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>

#include "absl/status/status.h"

namespace gradwire::rpc {

// The most that the answer to one take may contain. An item that is larger than `bytes` travels alone.
struct TakeLimits {
  uint64_t items = 0;
  uint64_t bytes = 0;
};

// Decides, at the producer of a stream, when the producer may go on and which take is answered with how many
// items. It knows the items by their sizes only. A pure state machine, not thread-safe.
//
// The outstanding takes are the credit of the producer: it may have as many items and bytes in the buffer as
// the reader has asked for and has not received. Takes are answered in the order of their sequence numbers,
// whatever the order of their arrival. A take is answered as soon as there is an item for it.
//
// States: open, then ended (the producer adds no more items). After the last item each take is answered with
// the end.
class StreamBuffer {
 public:
  // Maximum number of takes that wait. Readers keep fewer (ReadWindow::kMostTakes).
  static constexpr uint64_t kMostTakes = 32;
  // The largest effective limits of one take, whatever the reader asks for.
  static constexpr uint64_t kMostItems = 65'536;
  static constexpr uint64_t kMostBytes = uint64_t{16} << 20;
  // The most that the handler may write before it returns the stream, when no take can arrive.
  static constexpr uint64_t kUnreturnedItems = 1'024;
  static constexpr uint64_t kUnreturnedBytes = uint64_t{4} << 20;

  // A take arrived. The sequence numbers start at 0, and each is used once. InvalidArgument if the number was
  // used before (a second reader) or is too far ahead, or if a limit is 0.
  absl::Status add_take(uint64_t sequence, const TakeLimits& limits);

  // Whether the producer may add another item.
  bool has_room() const;
  // Whether the handler may add another item before it returns the stream.
  bool has_room_unreturned() const {
    return !ended_ && sizes_.size() < kUnreturnedItems && bytes_ < kUnreturnedBytes;
  }
  // The producer adds an item. It may do so without room: the item then waits in the buffer for a take.
  // REQUIRES: !ended()
  void push(uint64_t bytes);
  // The producer adds no more items.
  void end() { ended_ = true; }
  bool ended() const { return ended_; }
  std::size_t items() const { return sizes_.size(); }

  // An answer to the take with this sequence number: the next `items` items. `last`: no item follows.
  struct Answer {
    uint64_t sequence = 0;
    std::size_t items = 0;
    bool last = false;
  };
  // Whether next_answer() would return an answer.
  bool can_answer() const;
  // Returns the next answer, if there is one, and removes its items and its take.
  std::optional<Answer> next_answer();

 private:
  // Sequence number of the take that is answered next.
  uint64_t next_ = 0;
  std::map<uint64_t, TakeLimits> takes_;
  uint64_t credit_items_ = 0;
  uint64_t credit_bytes_ = 0;
  std::deque<uint64_t> sizes_;
  uint64_t bytes_ = 0;
  bool ended_ = false;
};

}  // namespace gradwire::rpc
