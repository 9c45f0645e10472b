#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "gradwire/base/mutex.h"
#include "gradwire/collectives/cpu/host_memory.h"
#include "gradwire/collectives/cpu/lanes/lane.h"
#include "gradwire/collectives/cpu/lanes/lane_books.h"
#include "gradwire/collectives/cpu/lanes/lanes.h"
#include "gradwire/collectives/cpu/mesh/matcher.h"

namespace gradwire::collectives::cpu {

// What is behind Lanes. Books and lanes are guarded by mutex_; what has ended is told to its futures after that.
class LaneCore : public std::enable_shared_from_this<LaneCore> {
 public:
  LaneCore(const Lanes::Options& options, std::unique_ptr<HostMemory> memory);
  ~LaneCore();
  // Where the lanes lie: each member's two slots are those that it writes.
  static std::size_t slot_bytes(int size);
  static char* lane_memory(const HostMemory& memory, int from, int to);
  static Lane lane(const HostMemory& memory, int from, int to);

  // lane_core.cc
  void start();
  void shutdown();
  void abort(const absl::Status& reason);

  // lane_send.cc
  Future<void> send(int dst, int64_t tag, Span data, absl::Time deadline);
  std::optional<absl::Status> try_send(int dst, int64_t tag, Span data);
  // lane_receive.cc
  Future<int> receive(int src, int64_t tag, Span data, absl::Time deadline);
  std::optional<absl::StatusOr<int>> try_receive(int src, int64_t tag, Span data);
  // lane_wait.cc
  // Drives until `done`, or the deadline.
  void drive(const std::atomic<bool>& done, absl::Time deadline);

 private:
  using Actions = Matcher::Actions;
  using SendPtr = std::shared_ptr<LaneSend>;
  using ReceivePtr = std::shared_ptr<LaneReceive>;
  // What is to be done when the lock has been released: who is told of an end, who is rung for because something was
  // written, and who because his lane is full.
  struct Todos {
    absl::InlinedVector<std::variant<SendPtr, ReceivePtr>, 2> ended;
    absl::InlinedVector<int, 4> written;
    absl::InlinedVector<int, 4> full;
  };

  using Peer = LanePeer;

  Peer& peer(int rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return peers_[static_cast<std::size_t>(rank)];
  }
  LaneBell& bell_of(int rank) const { return *reinterpret_cast<LaneBell*>(memory_->slot(rank, 0)); }
  LaneBell& my_bell() const { return bell_of(options_.rank); }
  absl::Status check(int rank) const;
  absl::Status check_open_locked(int dst) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void perform(Todos& todos) ABSL_LOCKS_EXCLUDED(mutex_);
  void ring_if_armed(int dst);
  void ring_if_unattended(int dst);
  void finish_locked(const SendPtr& send, absl::Status status, Todos& todos)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void finish_locked(const ReceivePtr& receive, absl::StatusOr<int> result, Todos& todos)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // ---- lane_send.cc
  bool take_window_locked(Peer& to, std::size_t size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the message was written at once.
  bool try_write_locked(int dst, int64_t tag, Span data) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status begin_send_locked(const SendPtr& send, Todos& todos) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void add_send_locked(const SendPtr& send) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status send_to_self_locked(const SendPtr& send, Todos& todos) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void say_locked(int dst, const LaneRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Writes of the queue what there is room for; whether it wrote anything.
  bool flush_locked(int dst, Todos& todos) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Writes of the message what there is room for; whether it is out of the queue.
  bool write_locked(Peer& to, const SendPtr& send, bool& wrote, Todos& todos)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void cancel_send(uint64_t id) ABSL_LOCKS_EXCLUDED(mutex_);
  void settle_locked(LaneSend& send) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void end_send_locked(const SendPtr& send, absl::Status status, Todos& todos)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void on_ask_locked(int src, uint64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void on_refuse_locked(int src, uint64_t id, absl::StatusCode code, uint64_t size, Todos& todos)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // ---- lane_receive.cc
  void post_locked(const ReceivePtr& receive, Todos& todos) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void cancel_receive(uint64_t id) ABSL_LOCKS_EXCLUDED(mutex_);
  bool next_is_eager_locked(int src) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the message was at the head of the lane, and nothing else about.
  bool try_take_locked(int src, int64_t tag, Span data, Todos& todos) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void end_receive_locked(const ReceivePtr& receive, absl::Status status, Todos& todos)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void apply_locked(Actions actions, Todos& todos) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void on_match_locked(const Matcher::Action& action, Actions& more, Todos& todos)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  ReceivePtr find_receive_locked(uint64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes what has come in a lane; whether there was anything.
  bool read_locked(int src, Todos& todos) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status hear_locked(int src, const LaneRecord& record, Todos& todos)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status on_begin_locked(int src, const LaneRecord& record, Todos& todos)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status on_piece_locked(int src, const LaneRecord& record, Actions& actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status end_stream_locked(int src, uint64_t id, Actions& actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // ---- lane_wait.cc
  // Everything that can be done now; whether there was anything.
  bool poll_locked(Todos& todos) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Says to the others whether this rank must be rung for. True: look once more.
  void arm_and_poll_locked(Todos& todos) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool arm_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether this rank must hear what others say: of an abort, too.
  bool pending_locked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !sends_.empty() || !receives_.empty() || queued_ > 0 || aborted_;
  }
  static void ring(LaneBell& bell);
  // These look for a few microseconds; whether there may be news.
  bool look(const std::atomic<bool>& done);
  static bool look_for(const LaneReader::Look& look);
  // False, at once, when no operation is under way here.
  bool sleep(const std::atomic<bool>& done, absl::Time until);
  // Ends what is late, and what waits for ranks that are gone.
  void tend_locked(absl::Time now, Todos& todos) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void lose_locked(int rank, const absl::Status& reason, Todos& todos) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Has the group's thread look by then.
  void watch_locked(absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void work();
  // Whether a rank that is waited for last ran where this thread does; kAnyRank: one of all.
  bool core_is_wanted(int src) const;
  void note_core() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Lanes::Options options_;
  const std::unique_ptr<HostMemory> memory_;
  // More ranks than cores.
  const bool crowded_;
  std::shared_ptr<Executor> executor_;
  std::thread thread_;

  Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool aborted_ ABSL_GUARDED_BY(mutex_) = false;
  Matcher matcher_ ABSL_GUARDED_BY(mutex_);
  std::vector<Peer> peers_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::flat_hash_map<uint64_t, SendPtr> sends_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, ReceivePtr> receives_ ABSL_GUARDED_BY(mutex_);
  // Threads that look, and that sleep until they are rung for.
  int drivers_ ABSL_GUARDED_BY(mutex_) = 0;
  std::atomic<int> sleepers_{0};  // Changed under mutex_.
  LaneBell::State state_ ABSL_GUARDED_BY(mutex_) = LaneBell::kIdle;
  // When this rank looks for the dead again, and an early guess of the first deadline.
  absl::Time tend_at_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Time next_deadline_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  // The last look left something.
  bool more_ ABSL_GUARDED_BY(mutex_) = false;
  // When the group's thread looks at deadlines next.
  absl::Time alarm_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  // In all peers' queues.
  std::size_t queued_ ABSL_GUARDED_BY(mutex_) = 0;
  int core_ ABSL_GUARDED_BY(mutex_) = -1;
  // Waits in a row that found another member on this core, and how many of these are one too many.
  int shared_ ABSL_GUARDED_BY(mutex_) = 0;
  int most_shared_ ABSL_GUARDED_BY(mutex_) = 64;
};

}  // namespace gradwire::collectives::cpu
