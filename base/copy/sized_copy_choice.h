#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "gradwire/base/copy/copy_choice.h"

namespace gradwire {

// Chooses the method of copies that one other thread or process reads next, for each size class by itself.
//
// The reader's time counts too. It is not measured: the writer does not know how much of it is waiting.
// Ordinary stores leave the data in a cache. After streaming stores the reader fetches it from memory, and
// this is charged to them. So they are chosen where ordinary stores take much longer, because each line of
// the target must first be fetched from the core that read it last. Copies that do not fit into the caches of
// a core are charged nothing: their reader fetches most of them from memory, whatever the method.
//
// Pure, not thread-safe.
class SizedCopyChoice {
 public:
  // Shorter copies use memcpy and are not timed: to choose takes as long as they do.
  static constexpr std::size_t kMinBytes = std::size_t{2} << 10;

  // `usable`: as in CopyChoice::Options.
  explicit SizedCopyChoice(const std::array<bool, kCopyMethods>& usable);

  // As CopyChoice::next() and record(), for a copy of `bytes` bytes.
  CopyOrder next(std::size_t bytes);
  void record(CopyMethod method, std::size_t bytes, int64_t nanoseconds);

 private:
  // The sizes of a class differ by less than a factor of two, so their costs for each byte can be compared.
  // The last class has all sizes from 4 MiB on.
  static constexpr std::size_t kClasses = 12;
  static std::size_t class_of(std::size_t bytes);
  template <std::size_t... kClass>
  SizedCopyChoice(const std::array<bool, kCopyMethods>& usable, std::index_sequence<kClass...>);

  std::array<CopyChoice, kClasses> choices_;
};

}  // namespace gradwire
