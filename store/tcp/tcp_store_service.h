#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/proto/store.pb.h"
#include "gradwire/store/memory/store_table.h"

namespace gradwire::store {

// What a TcpStore's server does, without sockets, threads or a clock: requests and times in, answers out
// (proto/store.proto). Its owner carries the answers to the sessions, which are connections.
//
// A session is there from its Hello on, and until close(). A request that must wait is kept, and answered by
// the change that satisfies it, by expire(), or by stop(). Everything in a request is checked here: it comes
// from anybody.
//
// States: serving, then stopped. Not thread-safe.
class TcpStoreService {
 public:
  // A number of the owner's choice, not used twice.
  using Session = uint64_t;
  struct Answer {
    Session session;
    proto::Response response;
  };
  using Answers = std::vector<Answer>;

  // `number`: the server's, random and not 0. `max_waiting_bytes`: of the requests of one session that wait;
  // `max_all_waiting_bytes`: of all sessions.
  explicit TcpStoreService(uint64_t number, std::size_t max_waiting_bytes = kMaxWaitingBytes,
                           std::size_t max_all_waiting_bytes = kMaxAllWaitingBytes);

  // Appends the answer, unless the request waits, and those of other requests that it satisfied.
  // InvalidArgument: what came is not of this protocol, and the session is to end.
  absl::Status handle(Session session, const proto::Request& request, absl::Time now, Answers& answers);
  // Whether it has said a Hello that was accepted.
  bool greeted(Session session) const { return sessions_.contains(session); }
  // The session's connection is gone.
  void close(Session session);
  // Answers what has waited long enough.
  void expire(absl::Time now, Answers& answers);
  // When to call that.
  absl::Time next_deadline() const;
  // Answers what waits, and all that comes later, with Unavailable. Idempotent.
  void stop(Answers& answers);

  std::size_t num_waiters() const { return waiting_.size(); }

 private:
  struct SessionState {
    absl::flat_hash_set<uint64_t> waiters;
    std::size_t waiting_bytes = 0;
    int32_t world_size = 0;
  };
  struct Waiting {
    Session session = 0;
    uint64_t request = 0;
    proto::Request::CallCase call = proto::Request::CALL_NOT_SET;
    absl::Time deadline;
    std::size_t bytes = 0;
  };

  // One for each call. They fill `response` or say what is wrong.
  absl::Status hello(Session session, const proto::HelloRequest& request, proto::HelloResponse& response,
                     Answers& answers);
  absl::Status set(const proto::SetRequest& request, Answers& answers);
  absl::Status add(const proto::AddRequest& request, proto::AddResponse& response, Answers& answers);
  absl::Status compare_set(const proto::CompareSetRequest& request, proto::CompareSetResponse& response,
                           Answers& answers);
  // Those that may wait: `kept` says that they do.
  absl::Status wait(Session session, const proto::Request& request, absl::Time now,
                    proto::WaitResponse& response, bool& kept);
  absl::Status watch(Session session, const proto::Request& request, absl::Time now,
                     proto::WatchResponse& response, bool& kept);
  absl::Status wait_for_workers(Session session, const proto::Request& request, absl::Time now,
                                proto::WaitForWorkersResponse& response, bool& kept);
  absl::Status call(Session session, const proto::Request& request, absl::Time now, proto::Response& response,
                    Answers& answers, bool& kept);

  absl::Status check_room_to_wait(const SessionState& session, const proto::Request& request) const;
  void keep(uint64_t waiter, Session session, const proto::Request& request, absl::Time now);
  Waiting take(uint64_t waiter);
  void wake(const StoreTable::Wakeups& wakeups, Answers& answers);
  // Ends one that has not got what it waits for.
  void end(uint64_t waiter, const absl::Status& status, Answers& answers);
  absl::Status count_worker(const proto::HelloRequest& request, Answers& answers);

  const uint64_t number_;
  const std::size_t max_waiting_bytes_;
  const std::size_t max_all_waiting_bytes_;

  StoreTable table_;
  absl::flat_hash_map<Session, SessionState> sessions_;
  absl::flat_hash_map<uint64_t, Waiting> waiting_;
  // Of all of waiting_.
  std::size_t waiting_bytes_ = 0;
  std::set<std::pair<absl::Time, uint64_t>> deadlines_;
  uint64_t next_waiter_ = 1;
  bool stopped_ = false;
  // Who has said Hello. Kept apart from table_, whose keys are the users' alone.
  int32_t world_size_ = 0;
  absl::flat_hash_set<uint64_t> workers_;
  StoreTable group_;  // One key, set when all of them have.
};

}  // namespace gradwire::store
