#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/proto/store.pb.h"
#include "gradwire/store/memory/store_table.h"

namespace gradwire::store {

// The logic of a TcpStore's server (proto/store.proto), without sockets, threads or a clock: it gets requests
// and times, and returns answers. A session is a connection; the owner sends the answers to the sessions.
//
// A session exists from its Hello until close(). A request that must wait is kept, and answered by the change
// that satisfies it, by expire() or by stop(). Every field of a request is checked here, because it may come
// from any program.
//
// States: serving, then stopped. Not thread-safe.
class TcpStoreService {
 public:
  // A number that the owner chooses and never reuses.
  using Session = uint64_t;
  struct Answer {
    Session session;
    proto::Response response;
    // The values that belong to the response. All answers to one change share them; see complete().
    std::vector<StoreTable::Value> values;
  };
  using Answers = std::vector<Answer>;

  // `number` identifies the server; it is random and not 0. `max_waiting_bytes` limits the waiting requests
  // of one session, `max_all_waiting_bytes` those of all sessions. `max_unread_bytes` limits the answers to
  // one session that a change causes at once.
  explicit TcpStoreService(uint64_t number, std::size_t max_waiting_bytes = kMaxWaitingBytes,
                           std::size_t max_all_waiting_bytes = kMaxAllWaitingBytes,
                           std::size_t max_unread_bytes = kMaxUnreadBytes);

  // Appends the answer, unless the request waits, and the answers to other requests that it satisfied.
  // InvalidArgument if the request does not follow the protocol; then the owner must close the connection.
  absl::Status handle(Session session, const proto::Request& request, absl::Time now, Answers& answers);
  // Whether the session has sent a Hello that was accepted.
  bool greeted(Session session) const { return sessions_.contains(session); }
  // Ends a session whose connection has closed. If it was to take an item of a queue, the next wait in turn
  // is answered.
  void close(Session session, Answers& answers);
  // Ends a request that waits; it is not answered. Ends the session's turn to take an item, as close() does,
  // also if `request` was answered already.
  void cancel(Session session, uint64_t request, Answers& answers);
  // Counts `n` more workers of the job, which are not clients that state the world size in Hello. Returns the
  // number of workers that have connected.
  int64_t add_workers(int64_t n, Answers& answers);
  // Answers the requests whose timeout has passed.
  void expire(absl::Time now, Answers& answers);
  // When to call expire() next.
  absl::Time next_deadline() const;
  // Answers all waiting requests, and all later ones, with Unavailable. Idempotent.
  void stop(Answers& answers);

  std::size_t num_waiters() const { return waiting_.size(); }

 private:
  struct SessionState {
    HashSet<uint64_t> waiters;
    std::size_t waiting_bytes = 0;
    int32_t world_size = 0;
    // The waiter of the wait in turn that waits, and the one whose turn it is to take an item; 0 without one.
    uint64_t waits_in_turn = 0;
    uint64_t turn = 0;
  };
  struct Waiting {
    Session session = 0;
    uint64_t request = 0;
    proto::Request::CallCase call = proto::Request::CALL_NOT_SET;
    absl::Time deadline;
    std::size_t bytes = 0;
    bool in_turn = false;
    // The keys of a wait whose values the answer has.
    std::vector<std::string> keys_to_get;
  };

  // One method for each call that is not in table_calls.h. They fill `response` or return an error.
  absl::Status hello(Session session, const proto::HelloRequest& request, proto::HelloResponse& response,
                     Answers& answers);
  // These calls may wait: they set `kept` if the request was kept.
  absl::Status wait(Session session, const proto::Request& request, absl::Time now,
                    proto::WaitResponse& response, bool& kept);
  absl::Status watch(Session session, const proto::Request& request, absl::Time now,
                     proto::WatchResponse& response, bool& kept);
  absl::Status queue_pop(Session session, const proto::Request& request, absl::Time now,
                         proto::QueuePopResponse& response, bool& kept);
  absl::Status wait_for_workers(Session session, const proto::Request& request, absl::Time now,
                                proto::WaitForWorkersResponse& response, bool& kept);
  absl::Status call(Session session, const proto::Request& request, absl::Time now, proto::Response& response,
                    Answers& answers, bool& kept);

  absl::Status check_room_to_wait(const SessionState& session, const proto::Request& request) const;
  void keep(uint64_t waiter, Session session, const proto::Request& request, absl::Time now);
  Waiting take(uint64_t waiter);
  void wake(const StoreTable::Wakeups& wakeups, Answers& answers);
  // Fills in the answer to a waiting request that was satisfied.
  void satisfy(const Waiting& waiting, const StoreTable::Wakeup& wakeup, Answer& answer) const;
  // Ends a waiting request that was not satisfied.
  void end(uint64_t waiter, const absl::Status& status, Answers& answers);
  absl::Status count_worker(const proto::HelloRequest& request, Answers& answers);
  // Ends the waits for the workers if all have connected.
  void check_workers(Answers& answers);
  int64_t num_workers() const { return static_cast<int64_t>(workers_.size()) + other_workers_; }

  const uint64_t number_;
  const std::size_t max_waiting_bytes_;
  const std::size_t max_all_waiting_bytes_;
  const std::size_t max_unread_bytes_;

  StoreTable table_;
  HashMap<Session, SessionState> sessions_;
  HashMap<uint64_t, Waiting> waiting_;
  // Sum of the bytes of all requests in waiting_.
  std::size_t waiting_bytes_ = 0;
  std::set<std::pair<absl::Time, uint64_t>> deadlines_;
  uint64_t next_waiter_ = 1;
  bool stopped_ = false;
  // The workers that have sent Hello. Separate from table_, which has only the users' keys.
  int32_t world_size_ = 0;
  HashSet<uint64_t> workers_;
  // The workers of add_workers().
  int64_t other_workers_ = 0;
  StoreTable group_;  // Has one key, set when all workers have connected.
};

// Returns the response with a copy of the values, for sending. A change may answer very many calls: each copy
// should be sent before the next one is made.
proto::Response complete(TcpStoreService::Answer answer);

}  // namespace gradwire::store
