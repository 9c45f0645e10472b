#include "gradwire/collectives/world.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/fork.h"
#include "gradwire/base/mutex.h"

namespace gradwire::collectives {
namespace {

// The world of this process. Never destroyed: a process that exits with a world joins no threads and sends
// nothing. A forked child has none.
struct World {
  Mutex mutex;
  Group group ABSL_GUARDED_BY(mutex);
  // Whether a thread is making the world.
  bool joining ABSL_GUARDED_BY(mutex) = false;
};

World& the_world() {
  static constinit PerProcess<World> instance;
  return instance.get();
}

}  // namespace

Group init_process_group(const ProcessGroupOptions& options) {
  {
    World& world = the_world();
    MutexLock lock(world.mutex);
    if (world.group != nullptr) {
      throw Error(absl::FailedPreconditionError(absl::StrCat(
          "init_process_group: this process already has a world and is its rank ", world.group->rank(),
          " of ", world.group->size(),
          "; call destroy_process_group first, or use ProcessGroup::create for several worlds")));
    }
    if (world.joining) {
      throw Error(
          absl::FailedPreconditionError("init_process_group: another thread is already making the world"));
    }
    world.joining = true;
  }
  // ProcessGroup::create() waits for other ranks and may throw, so the lock must not be held. `joining` keeps
  // other threads out. The destructor of `joined` clears it in either case, and stores the world, or nullptr
  // after an exception.
  Group made;
  struct Joined {
    Group& made;
    ~Joined() {
      MutexLock lock(the_world().mutex);
      the_world().joining = false;
      the_world().group = made;
    }
  } joined{made};
  made = ProcessGroup::create(options);
  return made;
}

bool is_initialized() {
  MutexLock lock(the_world().mutex);
  return the_world().group != nullptr;
}

void destroy_process_group(const Group& group) {
  Group leaving = group;
  {
    MutexLock lock(the_world().mutex);
    if (leaving == nullptr || leaving == the_world().group) leaving = std::move(the_world().group);
  }
  // destroy() waits and joins threads, so the lock must not be held.
  if (leaving != nullptr) leaving->destroy();
}

Group world() {
  MutexLock lock(the_world().mutex);
  if (the_world().group != nullptr) return the_world().group;
  throw Error(
      absl::FailedPreconditionError("this process has no process group: call init_process_group first"));
}

}  // namespace gradwire::collectives
