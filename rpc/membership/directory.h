#pragma once

#include <deque>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/mutex.h"
#include "gradwire/proto/membership.pb.h"
#include "gradwire/rpc/membership/group_log.h"
#include "gradwire/rpc/membership/joining.h"
#include "gradwire/rpc/membership/store_silence.h"
#include "gradwire/rpc/options.h"
#include "gradwire/rpc/worker.h"
#include "gradwire/store/store.h"

namespace gradwire::rpc {

// The members of a job by the group's log in the store (proto/membership.proto): joins, follows the others,
// reports deaths, and leaves. join() -> follow() -> leave(), stop(). Thread-safe.
class Directory {
 public:
  // Receives changes of the group, on a thread of the directory's, in the order of the log. Must not wait for
  // the store.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void on_joined(const WorkerAddress& worker) = 0;
    virtual void on_left(const Worker& worker) = 0;
    // The group has agreed that the worker is dead; it may be oneself. `by`: the name of the one who said so.
    virtual void on_died(const Worker& worker, const std::string& by, const std::string& reason) = 0;
    // This worker cannot reach the store, or the store has not answered for so long that it is taken for
    // gone; others may reach it. Until on_store_back nobody joins here, and this worker decides alone whom it
    // loses, and agrees on no death. Repeated while that is so.
    virtual void on_store_lost(const absl::Status& reason) = 0;
    virtual void on_store_back() = 0;
  };

  using Life = Joining::Life;
  using Probe = Joining::Probe;
  using Group = Joining::Group;

  // A store that does not answer for `store_lost_after` is lost. It takes two calls to find out, eight
  // seconds with a TcpStore, however short that is.
  explicit Directory(std::shared_ptr<store::Store> store,
                     absl::Duration store_lost_after = HeartbeatOptions().dead_after)
      : store_lost_after_(store_lost_after), log_(std::move(store)) {}
  ~Directory();

  // Joins and, unless `world_size` is 0, waits until all ids below it are members. A name or an id whose
  // holder is dead, as `probe` finds, is taken over. Errors:
  //   InvalidArgument    a live member has the name or id, or the group was started with another world size.
  //                      In a group that was never complete all waiting workers fail with the same reason at
  //                      once, and so does a worker that comes to it in the next half minute.
  //   DeadlineExceeded   names the ids that did not come, or the member of which it is unknown if it lives
  //   Aborted            this worker was declared dead while it joined
  // and the store's.
  absl::StatusOr<Group> join(const Worker& self, int world_size, proto::WorkerRecord record,
                             absl::Duration timeout, const Probe& probe);

  // After join(): reports every change from there on, until the worker's own end.
  void follow(Listener& listener);

  // Appends to the log that `worker` is dead, in the background, unless somebody has, or this worker itself
  // is.
  void declare_dead(const Worker& worker, const std::string& reason);

  // Appends that this worker leaves; the last one to do so clears the log away. Does nothing before join()
  // has appended, and the second time.
  absl::Status leave();

  // Ends the threads. on_... is not called any more when it returns. Idempotent. Not from a Listener.
  void stop();

  store::Store& store() { return log_.store(); }

 private:
  void run_reader(Listener& listener);
  // Waits for the next line, or asks whether the store answers if it has not. Notes in `silence` what that
  // showed.
  absl::StatusOr<GroupLog::Event> look(StoreSilence& silence);
  // Says that the store is lost, on standard error if it is `news`.
  void tell_lost(Listener& listener, const absl::Status& reason, bool news);
  // False when this worker's own end has been read.
  bool tell(Listener& listener, const GroupLog::Event& event);
  void run_writer();

  const absl::Duration store_lost_after_;
  Worker self_;
  // join()'s, then the reader's. writer_log_ is a second reader of the same log, so that appending need not
  // wait for it.
  GroupLog log_;
  std::unique_ptr<GroupLog> writer_log_;

  Mutex mutex_;
  CondVar changed_;
  bool entered_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool leaving_ ABSL_GUARDED_BY(mutex_) = false;
  bool left_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status leave_status_ ABSL_GUARDED_BY(mutex_);
  std::deque<proto::LogLine> deaths_ ABSL_GUARDED_BY(mutex_);
  std::thread reader_;
  std::thread writer_;
};

}  // namespace gradwire::rpc
