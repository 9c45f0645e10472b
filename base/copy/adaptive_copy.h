#pragma once

#include <cstddef>
#include <cstring>

#include "absl/base/thread_annotations.h"
#include "gradwire/base/copy/copy_choice.h"
#include "gradwire/base/mutex.h"

namespace gradwire {

// Copies memory that another process or thread then reads, with the method that has cost the least for this
// object so far. Use one object for each reader, or for readers that do the same. Not thread-safe.
class AdaptiveCopy {
 public:
  AdaptiveCopy();

  // As memcpy(). Afterwards a release store publishes the copy. Null pointers are allowed if `bytes` is 0.
  void copy(void* to, const void* from, std::size_t bytes) {
    if (bytes >= SizedCopyChoice::kMinBytes) {
      copy_chosen(to, from, bytes);
    } else if (bytes > 0) {
      std::memcpy(to, from, bytes);
    }
  }

 private:
  void copy_chosen(void* to, const void* from, std::size_t bytes);

  SizedCopyChoice choice_;
};

// The same for several threads that write for one reader. They copy at the same time. Thread-safe.
class SharedAdaptiveCopy {
 public:
  SharedAdaptiveCopy();

  // As AdaptiveCopy::copy().
  void copy(void* to, const void* from, std::size_t bytes);

 private:
  Mutex mutex_;
  SizedCopyChoice choice_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire
