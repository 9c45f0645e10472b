#pragma once

#include <array>
#include <cstddef>

#include "absl/base/thread_annotations.h"
#include "gradwire/base/copy/copy_choice.h"
#include "gradwire/base/mutex.h"

namespace gradwire {

// Copies memory that another process or thread then reads, with the method that has been the fastest for this
// object so far. Use one object for each reader. Thread-safe.
class AdaptiveCopy {
 public:
  AdaptiveCopy();

  // As memcpy(). Afterwards a release store publishes the copy.
  void copy(void* to, const void* from, std::size_t bytes);

 private:
  // Copies below 64 KiB, 512 KiB and 4 MiB, and larger ones.
  static constexpr std::size_t kSizes = 4;
  static std::size_t size_class(std::size_t bytes);

  Mutex mutex_;
  std::array<CopyChoice, kSizes> choices_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire
