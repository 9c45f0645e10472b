#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/timer_queue.h"
#include "proto/store.grpc.pb.h"
#include "store/store_table.h"

namespace gradwire::store {

// The TcpStore's calls, answered from a StoreTable. A call that must wait is kept as a reactor and holds no
// thread. Whoever takes a waiting call out of waiting_ answers it: the change that satisfies it, its timer,
// the client's going, or stop(). Calls are answered with no lock held.
//
// Thread-safe. gRPC owns a reactor until OnDone; the service outlives the server that calls it.
class TcpStoreService final : public proto::TcpStore::CallbackService {
 public:
  explicit TcpStoreService(Clock& clock = Clock::system());
  ~TcpStoreService() override;

  // Answers what waits and all that comes later with Unavailable. Idempotent.
  void stop();
  std::size_t num_waiters() const;

  using Context = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;

  Reactor* Hello(Context* context, const proto::HelloRequest* request,
                 proto::HelloResponse* response) override;
  Reactor* Set(Context* context, const proto::SetRequest* request, proto::SetResponse* response) override;
  Reactor* Add(Context* context, const proto::AddRequest* request, proto::AddResponse* response) override;
  Reactor* CompareSet(Context* context, const proto::CompareSetRequest* request,
                      proto::CompareSetResponse* response) override;
  Reactor* Delete(Context* context, const proto::DeleteRequest* request,
                  proto::DeleteResponse* response) override;
  Reactor* NumKeys(Context* context, const proto::NumKeysRequest* request,
                   proto::NumKeysResponse* response) override;
  Reactor* Wait(Context* context, const proto::WaitRequest* request, proto::WaitResponse* response) override;
  Reactor* Watch(Context* context, const proto::WatchRequest* request,
                 proto::WatchResponse* response) override;

 private:
  // How a waiting call ended: with what it waited for (`value` for a watch), or at its timeout with what was
  // missing.
  struct Outcome {
    StoreTable::Value value;
    std::vector<std::string> missing;
  };
  class WaitingCall;
  struct Waiting {
    WaitingCall* call = nullptr;
    uint64_t timer = 0;
  };
  struct Ended {
    Waiting waiting;
    Outcome outcome;
  };
  using Fill = absl::AnyInvocable<void(const Outcome&)>;

  // The server's number, room and stop; the first thing that every call checks.
  absl::Status admit_locked(uint64_t server) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Registers a call that waits under `id`, which the table knows already.
  Reactor* keep_locked(uint64_t id, int64_t timeout_us, Fill fill) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<Ended> take_locked(const StoreTable::Wakeups& wakeups) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void drop_locked(uint64_t id, std::vector<Ended>& ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void answer(std::vector<Ended> ended, const grpc::Status& status);
  // The time was up, or the client has gone.
  void end(uint64_t id, const grpc::Status& status);
  // InvalidArgument if the world size is not the one said before.
  absl::Status count_worker_locked(const proto::HelloRequest& request, std::vector<Ended>& ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int32_t num_workers() const;

  const uint64_t server_;

  mutable Mutex mutex_;
  StoreTable table_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_waiter_ ABSL_GUARDED_BY(mutex_) = 1;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  // Who has said Hello. Kept apart from table_, whose keys are the users' alone.
  int32_t world_size_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_set<uint64_t> workers_ ABSL_GUARDED_BY(mutex_);
  StoreTable group_ ABSL_GUARDED_BY(mutex_);  // One key, set when all of them have.

  TimerQueue timers_;  // Last: its thread uses the rest.
};

// The details of the status with which a stopping server ends calls.
inline constexpr char kStoreStopped[] = "gradwire-store-stopped";

}  // namespace gradwire::store
