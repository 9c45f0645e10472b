#pragma once

#include <deque>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/mutex.h"
#include "gradwire/proto/membership.pb.h"
#include "gradwire/rpc/core/options.h"
#include "gradwire/rpc/core/worker.h"
#include "gradwire/rpc/membership/group_log.h"
#include "gradwire/rpc/membership/joining.h"
#include "gradwire/rpc/membership/store_silence.h"
#include "gradwire/store/interface/store.h"

namespace gradwire::rpc {

// The members of a group, according to the group's log in the store (proto/membership.proto). A directory
// joins the group, reads the log to follow the other members, reports deaths, and leaves. Order of calls:
// join(), follow(), leave(), stop(). Thread-safe.
class Directory {
 public:
  // Receives the changes of the group in the order of the log, on a thread of the directory. Implementations
  // must not wait for the store.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void on_joined(const WorkerAddress& worker) = 0;
    virtual void on_left(const Worker& worker) = 0;
    // The group has agreed that the worker is dead; it may be this worker itself. `by`: the name of the
    // worker that declared it dead.
    virtual void on_died(const Worker& worker, const std::string& by, const std::string& reason) = 0;
    // This worker cannot reach the store, or the store has not answered for so long that it counts as lost.
    // Other workers may still reach it. Until on_store_back() this worker learns of no joins and of no agreed
    // deaths, and decides alone which workers it loses. Called repeatedly while the store is lost.
    // `for_good`: the store was started again without the group's log. Then `reason` is Aborted, and this is
    // the last call of the listener.
    virtual void on_store_lost(const absl::Status& reason, bool for_good) = 0;
    virtual void on_store_back() = 0;
  };

  using Life = Joining::Life;
  using Probe = Joining::Probe;
  using Group = Joining::Group;

  // A store that does not answer for `store_lost_after` counts as lost. Detection takes at least two calls to
  // the store, which is eight seconds with a TcpStore even if `store_lost_after` is shorter.
  explicit Directory(std::shared_ptr<store::Store> store,
                     absl::Duration store_lost_after = HeartbeatOptions().dead_after)
      : store_lost_after_(store_lost_after), log_(std::move(store)) {}
  ~Directory();

  // Joins the group. Unless `world_size` is 0, waits until every id below it is a member. A name or an id
  // whose holder is dead, as `probe` finds out, is taken over. Errors:
  //   InvalidArgument    A live member has the name or id, or the group was started with another world size.
  //                      If the group has never been complete, all waiting workers fail at once with the same
  //                      reason. A worker that comes to it within the next half minute fails with it, too.
  //   DeadlineExceeded   Names the ids that did not join, or the member of which it is unknown whether it is
  //                      alive.
  //   Aborted            This worker was declared dead while it joined.
  // Other errors are those of the store.
  absl::StatusOr<Group> join(const Worker& self, int world_size, proto::WorkerRecord record,
                             absl::Duration timeout, const Probe& probe);

  // Call after join(). Reports every later change, up to this worker's own end. ResourceExhausted if the
  // system has no threads left for it; then leave() and stop() end what join() has begun.
  absl::Status follow(Listener& listener);

  // How this worker knows about a death.
  enum class Knowledge {
    kSilence,  // Nothing has arrived from the worker for long. answered() withdraws the declaration.
    kProof,    // Its process has ended, or it has left.
  };
  // Appends to the log that `worker` is dead, in the background. Does nothing if the log says so already, or
  // says that this worker is dead, or if the store has lost the log.
  void declare_dead(const Worker& worker, Knowledge knowledge, const std::string& reason);
  // Call when a message has arrived from the worker again. What was only concluded from its silence, and is
  // not in the log yet, is not appended: a store that was away for long may be back only now.
  void answered(uint64_t incarnation);

  // Appends to the log that this worker leaves. The last member that leaves also closes the log. Does nothing
  // if join() has not appended anything, and when called a second time. Errors: those of the store.
  absl::Status leave();

  // Ends the threads. No Listener method is called after it returns. Idempotent. Must not be called from a
  // Listener.
  void stop();

  store::Store& store() { return log_.store(); }

 private:
  void run_reader(Listener& listener);
  // Waits for the next line of the log. If the store has been silent, only asks whether it answers. Updates
  // `silence` with the result.
  absl::StatusOr<GroupLog::Event> read_next(StoreSilence& silence);
  // Reports to the listener that the store is lost, then waits before the next attempt. `is_first`: also logs
  // it.
  void report_lost(Listener& listener, const absl::Status& reason, bool is_first);
  // The store was started again without the log, as `failure` says. Reports that once, and has the writer
  // end.
  void report_replaced(Listener& listener, const absl::Status& failure);
  // Reports an event to the listener. Returns false if the event is this worker's own end.
  bool report(Listener& listener, const GroupLog::Event& event);
  void run_writer();

  const absl::Duration store_lost_after_;
  Worker self_;
  // The log, used by join() and then by the reader's thread. writer_log_ is a second reader of the same log
  // for the writer's thread, so that appending need not wait for the reader.
  GroupLog log_;
  std::unique_ptr<GroupLog> writer_log_;

  Mutex mutex_;
  CondVar changed_;
  bool entered_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool leaving_ ABSL_GUARDED_BY(mutex_) = false;
  bool left_ ABSL_GUARDED_BY(mutex_) = false;
  // The store has lost the log: nothing can be appended any more.
  bool replaced_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status leave_status_ ABSL_GUARDED_BY(mutex_);
  // A death that is not in the log yet.
  struct Death {
    proto::LogLine line;
    Knowledge knowledge = Knowledge::kProof;
    bool withdrawn = false;
  };
  // The writer appends the first one, and removes it when that is done.
  std::deque<Death> deaths_ ABSL_GUARDED_BY(mutex_);
  std::thread reader_;
  std::thread writer_;
};

}  // namespace gradwire::rpc
