#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/text/utf8.h"

namespace gradwire::metrics {

// Whether the text of metrics shows this character of a label's value, as it is or with an escape. Other
// characters become '?'.
inline bool is_shown(const Utf8Character& character) {
  const bool control = (character.code < 0x20 && character.code != '\n') || character.code == 0x7f;
  return character.valid && !control;
}

// The label value of everything that a bound leaves out.
inline constexpr absl::string_view kOther = "other";

// A name is read by words of 8 bytes, because the general functions for hashing and comparing take longer
// than the rest of a search.
namespace label_internal {

inline constexpr std::size_t kWord = sizeof(uint64_t);

// REQUIRES: `name` has a word at this offset.
inline uint64_t word_at(absl::string_view name, std::size_t offset) {
  uint64_t word = 0;
  std::memcpy(&word, name.data() + offset, kWord);
  return word;
}

// All bytes of a name that is shorter than a word. Not inline, so that the search for others is short.
ABSL_ATTRIBUTE_NOINLINE inline uint64_t short_word(absl::string_view name) {
  uint64_t word = 0;
  for (const char c : name) word = word << 8 | static_cast<unsigned char>(c);
  return word;
}

// A hash of the length and of two words: the last one, and the one in the middle. Names that differ only
// elsewhere have the same hash.
inline uint64_t hash_of(absl::string_view name) {
  constexpr uint64_t kMiddle = 0xc2b2'ae3d'27d4'eb4f;
  constexpr uint64_t kLast = 0x9e37'79b9'7f4a'7c15;
  uint64_t hash = name.size();
  if (name.size() >= kWord) {
    const std::size_t last = name.size() - kWord;
    hash += word_at(name, last / 2) * kMiddle ^ word_at(name, last) * kLast;
  } else {
    hash += short_word(name) * kLast;
  }
  return hash ^ hash >> 32;
}

inline bool same(absl::string_view a, absl::string_view b) {
  if (a.size() != b.size()) return false;
  if (a.size() < kWord) return short_word(a) == short_word(b);
  const std::size_t last = a.size() - kWord;
  for (std::size_t i = 0; i < last; i += kWord) {
    if (word_at(a, i) != word_at(b, i)) return false;
  }
  return word_at(a, last) == word_at(b, last);
}

}  // namespace label_internal

// Finds the metrics of a name, for example of a function, without a lock. There are at most `kMost` names.
// Later ones get the metrics of kOther. Entries are never removed. A search takes some nanoseconds. If the
// names were chosen to have the same hash, it compares at most kMost of them. Thread-safe.
//
// T is constructed from the name by `make`, which is called once for each name, with a lock held.
template <class T, std::size_t kMost>
class LabelTable {
 public:
  LabelTable() = default;
  LabelTable(const LabelTable&) = delete;
  LabelTable& operator=(const LabelTable&) = delete;

  // The metrics of the name; nullptr if they do not exist yet.
  T* known(absl::string_view name) const {
    const uint64_t hash = label_internal::hash_of(name);
    for (std::size_t i = 0; i < kPlaces; ++i) {
      Entry* const entry = places_[(hash + i) % kPlaces].load(std::memory_order_acquire);
      if (entry == nullptr) break;
      if (entry->hash == hash && label_internal::same(entry->name, name)) return &entry->value;
    }
    // If this is set, no entry is added any more: every unknown name is one of the others.
    return other_.load(std::memory_order_acquire);
  }
  template <class Make>
  T& find(absl::string_view name, const Make& make) {
    T* const value = known(name);
    return value != nullptr ? *value : add(name, make);
  }

 private:
  // Aligned, so that the beginning of the value is in the cache line that the search reads anyway.
  struct alignas(64) Entry {
    template <class Make>
    Entry(absl::string_view name, uint64_t hash, const Make& make)
        : hash(hash), name(name), value(make(name)) {}
    const uint64_t hash;
    const std::string name;
    T value;
  };
  // At most half full, so that a search is short and always ends.
  static constexpr std::size_t kPlaces = 2 * std::bit_ceil(kMost);

  template <class Make>
  T& add(absl::string_view name, const Make& make) {
    const uint64_t hash = label_internal::hash_of(name);
    MutexLock lock(mutex_);
    std::size_t place = hash % kPlaces;
    while (Entry* const entry = places_[place].load(std::memory_order_relaxed)) {
      if (entry->hash == hash && label_internal::same(entry->name, name)) return entry->value;
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
