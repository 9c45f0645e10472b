#include "base/mutex.h"

// ThreadSanitizer does not see the reference count of the prebuilt absl::Status go down, so it takes the
// deletion by the last holder for a race with a copy that another thread made of the status before.
#ifdef GRADWIRE_THREAD_SANITIZER
extern "C" const char* __tsan_default_suppressions() {
  return "race:^Unref$\n"
         "race:absl::*Status::Unref*\n";
}
#endif
