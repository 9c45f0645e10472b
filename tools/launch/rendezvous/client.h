#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/log/log_record.h"
#include "gradwire/base/mutex.h"
#include "gradwire/store/interface/store.h"
#include "gradwire/tools/launch/rendezvous/rendezvous.h"
#include "gradwire/tools/launch/rendezvous/types.h"

namespace gradwire::rendezvous {

// Executes the operations that one node's state machine wants on the store, one step at a time:
//
//   1. If the record is not known to be current, read it.
//   2. Execute the first operation that is wanted: set or delete the beat, read the beats of others, or
//      change the record.
//   3. If none is wanted, watch the record for a slice of time.
//
// After a call whose outcome is unknown it starts at 1 again. For one thread only.
class StoreDriver {
 public:
  // The store is lost if it cannot be reached for `store_timeout`. If `interrupted` returns true, reading the
  // beats stops. The clock must outlive the driver.
  StoreDriver(const Options& options, absl::Duration store_timeout, std::function<bool()> interrupted,
              Clock& clock)
      : store_timeout_(store_timeout),
        alone_(options.settings.max_nodes == 1),
        interrupted_(std::move(interrupted)),
        clock_(clock),
        machine_(options, clock.now()) {}

  Rendezvous& machine() { return machine_; }
  bool ended() const { return machine_.update().kind == RendezvousUpdate::Kind::kEnded; }

  // Sets the store. Must be called before step().
  void use(std::shared_ptr<store::Store> store) { store_ = std::move(store); }
  // Runs one step; takes at most a slice, or the timeout of one call. Returns how long to pause before the
  // next step. A report of the launcher ends the pause.
  absl::Duration step();

 private:
  absl::StatusOr<absl::Duration> try_step();
  absl::Status read_beats(const std::vector<std::string>& ids);
  absl::Status change(const Rendezvous::Wanted::Change& change);
  absl::Status watch(absl::Duration timeout);
  // Reads the current value of the key without waiting; nullopt if it is missing.
  absl::StatusOr<std::optional<std::string>> read_now(const std::string& key);
  void deliver(std::optional<std::string> bytes);
  // `start` is when the call began.
  void on_error(const absl::Status& status, absl::Time start);

  const absl::Duration store_timeout_;
  const bool alone_;
  const std::function<bool()> interrupted_;
  Clock& clock_;
  std::shared_ptr<store::Store> store_;
  Rendezvous machine_;
  // The record as last read. known_ is true if no call has failed since.
  std::optional<std::string> bytes_;
  bool known_ = false;
  std::optional<absl::Time> failing_since_;
};

// Whether an error of a store may be temporary.
bool is_temporary(const absl::Status& status);

// Options of a RendezvousClient.
struct ClientOptions {
  // Options of the node. node_id and to_time_of_day may be left unset: the client sets them.
  Options node;
  // If the store was reached once and then cannot be reached for this long, it is lost: the node ends with
  // Unavailable.
  absl::Duration store_timeout = absl::Seconds(60);
};

// The rendezvous as a launcher uses it. Runs the state machine against a store, on a thread of its own, so
// that the launcher's event loop never waits for the store.
//
// If the store cannot be reached at first, the client retries for join_timeout. A report of the launcher is
// processed within a fraction of a second.
//
// The methods are for one other thread. The destructor ends and joins the thread within two or three seconds.
// It does not notify the other nodes: call leave() for that, and wait for done().
class RendezvousClient {
 public:
  // Opens the store within `timeout`. After Unavailable or DeadlineExceeded the client retries. Called on the
  // client's thread.
  using OpenStore = std::function<absl::StatusOr<std::shared_ptr<store::Store>>(absl::Duration timeout)>;

  // Starts a client. InvalidArgument: see check(). Unavailable: the system has no descriptor left. The clock
  // must outlive the client.
  static absl::StatusOr<std::unique_ptr<RendezvousClient>> start(ClientOptions options, OpenStore open_store,
                                                                 Clock& clock = Clock::system());
  ~RendezvousClient();

  // A descriptor that is readable after update() or done() have changed. update() resets it.
  int event_fd() const { return event_.get(); }
  // The current task of the launcher. A task that was current only for a moment may be missed; for example, a
  // kStop may come without the kRun before it.
  RendezvousUpdate update();
  // Whether the job is over for this node and no other node needs its launcher any more. True some time after
  // update() returned kEnded.
  bool done();

  // The newest RendezvousUpdate::wait.
  ProgressState wait_state();

  // Reports of the launcher; see the same methods of Rendezvous.
  void ready() {
    post([](Rendezvous& machine, absl::Time now) { machine.ready(now); });
  }
  void workers_failed(Failure failure) {
    post([failure = std::move(failure)](Rendezvous& machine, absl::Time now) {
      machine.workers_failed(failure, now);
    });
  }
  void workers_done() {
    post([](Rendezvous& machine, absl::Time now) { machine.workers_done(now); });
  }
  void store_ready(Address address) {
    post([address = std::move(address)](Rendezvous& machine, absl::Time now) {
      machine.store_ready(address, now);
    });
  }
  void leave(std::string reason) {
    post([reason = std::move(reason)](Rendezvous& machine, absl::Time now) { machine.leave(reason, now); });
  }

 private:
  using Report = std::function<void(Rendezvous&, absl::Time)>;

  RendezvousClient(ClientOptions options, OpenStore opener, Clock& clock, Descriptor event);

  void run();
  absl::Status open();
  void post(Report report);
  void deliver_reports();
  void publish_update();
  // Sleeps, but ends early when the launcher posts a report.
  void pause(absl::Duration time);
  bool stopping();

  const ClientOptions options_;
  const OpenStore open_store_;
  Clock& clock_;
  const Descriptor event_;

  // Used by the thread only.
  StoreDriver driver_;

  Mutex mutex_;
  CondVar changed_;
  RendezvousUpdate update_ ABSL_GUARDED_BY(mutex_);
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Report> reports_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;  // Last member: the thread uses the others.
};

}  // namespace gradwire::rendezvous
