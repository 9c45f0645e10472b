#pragma once

#include <cstddef>
#include <map>
#include <optional>

namespace gradwire::lag {

// The free parts of an address range. Not thread-safe.
class Extents {
 public:
  explicit Extents(size_t size) { free_.emplace(0, size); }

  // Takes the first part that is large enough. Returns its offset, or nothing if the range is too full.
  std::optional<size_t> take(size_t size) {
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      const auto [offset, length] = *it;
      if (length < size) continue;
      free_.erase(it);
      if (length > size) free_.emplace(offset + size, length - size);
      return offset;
    }
    return std::nullopt;
  }

  // Gives a part back. It joins its free neighbours.
  void give(size_t offset, size_t size) {
    auto next = free_.lower_bound(offset);
    if (next != free_.end() && next->first == offset + size) {
      size += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == offset) {
        before->second += size;
        return;
      }
    }
    free_.emplace(offset, size);
  }

 private:
  // Length by offset.
  std::map<size_t, size_t> free_;
};

}  // namespace gradwire::lag
