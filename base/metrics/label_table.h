#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/mutex.h"

namespace gradwire::metrics {

// The label value of everything that a bound leaves out.
inline constexpr absl::string_view kOther = "other";

// Finds the metrics of a name, for example of a function, without a lock. There are at most `kMost` names.
// Later ones get the metrics of kOther. Entries are never removed. Thread-safe.
//
// T is constructed from the name by `make`, which is called once for each name, with a lock held.
template <class T, std::size_t kMost>
class LabelTable {
 public:
  LabelTable() = default;
  LabelTable(const LabelTable&) = delete;
  LabelTable& operator=(const LabelTable&) = delete;

  template <class Make>
  T& find(absl::string_view name, const Make& make) {
    const std::size_t hash = absl::Hash<absl::string_view>()(name);
    for (std::size_t i = 0; i < kPlaces; ++i) {
      Entry* const entry = places_[(hash + i) % kPlaces].load(std::memory_order_acquire);
      if (entry == nullptr) break;
      if (entry->hash == hash && entry->name == name) return entry->value;
    }
    // No entry is added any more: every unknown name is one of the others.
    if (T* const other = other_.load(std::memory_order_acquire)) return *other;
    return add(name, hash, make);
  }

 private:
  struct Entry {
    template <class Make>
    Entry(absl::string_view name, std::size_t hash, const Make& make)
        : name(name), hash(hash), value(make(name)) {}
    const std::string name;
    const std::size_t hash;
    T value;
  };
  // At most half full, so that a search is short and always ends.
  static constexpr std::size_t kPlaces = 2 * std::bit_ceil(kMost + 1);

  template <class Make>
  T& add(absl::string_view name, std::size_t hash, const Make& make) {
    MutexLock lock(mutex_);
    std::size_t place = hash % kPlaces;
    while (Entry* const entry = places_[place].load(std::memory_order_relaxed)) {
      if (entry->hash == hash && entry->name == name) return entry->value;
      place = (place + 1) % kPlaces;
    }
    if (T* const other = other_.load(std::memory_order_relaxed)) return *other;
    if (entries_.size() == kMost) {
      entries_.push_back(std::make_unique<Entry>(kOther, 0, make));
      other_.store(&entries_.back()->value, std::memory_order_release);
      return entries_.back()->value;
    }
    entries_.push_back(std::make_unique<Entry>(name, hash, make));
    places_[place].store(entries_.back().get(), std::memory_order_release);
    return entries_.back()->value;
  }

  Mutex mutex_;
  std::vector<std::unique_ptr<Entry>> entries_ ABSL_GUARDED_BY(mutex_);

  // Written with mutex_ held, read without.
  std::array<std::atomic<Entry*>, kPlaces> places_{};
  std::atomic<T*> other_{nullptr};
};

}  // namespace gradwire::metrics
