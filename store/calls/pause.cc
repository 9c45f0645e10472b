#include "gradwire/store/calls/pause.h"

#include "gradwire/base/mutex.h"

namespace gradwire::store {

// No code notifies `never`: only the time ends the wait.
void pause_until(Clock& clock, absl::Time end) {
  Mutex mutex;
  CondVar never;
  MutexLock lock(mutex);
  while (clock.now() < end) clock.wait_until(mutex, never, end);
}

}  // namespace gradwire::store
