#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/mutex.h"
#include "gradwire/store/store.h"
#include "gradwire/tools/launch/rendezvous/rendezvous.h"
#include "gradwire/tools/launch/rendezvous/store_driver.h"
#include "gradwire/tools/launch/rendezvous/types.h"

namespace gradwire::rendezvous {

struct ClientOptions {
  // Its node_id and to_time_of_day are filled in when they are not given.
  Options node;
  // A store that has been reached and then cannot be for so long is lost: the node ends with Unavailable.
  absl::Duration store_timeout = absl::Seconds(60);
};

// A launcher's part in the rendezvous: runs the state machine against a store on a thread of its own, so that
// the launcher's event loop never waits for the store.
//
// A store that cannot be reached at first is tried for join_timeout. What the launcher says is on its way
// within a fraction of a second.
//
// The methods are for one other thread. The destructor ends and joins the thread within two or three seconds,
// without telling the other nodes anything: leave() does that, and then done().
class RendezvousClient {
 public:
  // Tries to reach the store for so long. Unavailable and DeadlineExceeded: it may come yet. Called on the
  // client's thread.
  using OpenStore = std::function<absl::StatusOr<std::shared_ptr<store::Store>>(absl::Duration timeout)>;

  // InvalidArgument as check(); Unavailable when the system has no descriptor left. The clock outlives the
  // client.
  static absl::StatusOr<std::unique_ptr<RendezvousClient>> start(ClientOptions options, OpenStore open_store,
                                                                 Clock& clock = Clock::system());
  ~RendezvousClient();

  // Readable when update() or done() have changed; update() makes it unreadable.
  int event_fd() const { return event_.get(); }
  // The current task. A task that was current for a moment only may be missed: a kStop may come without the
  // kRun before.
  RendezvousUpdate update();
  // The job is over for this node, and nobody needs its launcher any more. True some time after update have
  // kEnded.
  bool done();

  // As in Rendezvous.
  void ready() {
    say([](Rendezvous& machine, absl::Time now) { machine.ready(now); });
  }
  void workers_failed(Failure failure) {
    say([failure = std::move(failure)](Rendezvous& machine, absl::Time now) {
      machine.workers_failed(failure, now);
    });
  }
  void workers_done() {
    say([](Rendezvous& machine, absl::Time now) { machine.workers_done(now); });
  }
  void store_served(Address address) {
    say([address = std::move(address)](Rendezvous& machine, absl::Time now) {
      machine.store_served(address, now);
    });
  }
  void leave(std::string reason) {
    say([reason = std::move(reason)](Rendezvous& machine, absl::Time now) { machine.leave(reason, now); });
  }

 private:
  using Say = std::function<void(Rendezvous&, absl::Time)>;

  RendezvousClient(ClientOptions options, OpenStore opener, Clock& clock, Descriptor event);

  void run();
  absl::Status open();
  void say(Say what);
  void take_said();
  void announce();
  // Shorter when the launcher says something.
  void rest(absl::Duration time);
  bool stopping();

  const ClientOptions options_;
  const OpenStore open_store_;
  Clock& clock_;
  const Descriptor event_;

  // The thread's own.
  StoreDriver driver_;

  Mutex mutex_;
  CondVar changed_;
  RendezvousUpdate update_ ABSL_GUARDED_BY(mutex_);
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Say> said_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;  // last: it uses the rest
};

}  // namespace gradwire::rendezvous
