#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/codec/id.h"
#include "gradwire/rpc/limits/worker_counts.h"
#include "gradwire/rpc/membership/gone_workers.h"

namespace gradwire::autograd {

// Records which contexts are live on a worker, which were released, which other workers they have reached,
// and which workers may end them. It does no input or output.
//
// A context is new (the table has no record of it), live, or released. Released contexts must be
// distinguished from new ones while a late message may still arrive. For each origin the table keeps a low
// watermark, below which all contexts are released, and the released counters above it. The origin knows its
// watermark, which is the lowest counter of its live contexts, and sends it with every release.
//
// A context is ended by its origin or by a party. A party is a worker that sent a message of the context to
// this worker, or received one from it. A release by any other worker is a claim, which counts only against
// that worker: the release may have overtaken the worker's own first message, which must then be refused,
// while the context stays live for the others. The watermark belongs to the origin. A watermark that another
// worker sends ends only contexts in which that worker takes part, or which have no party left.
//
// Every table has a limit, which is checked before the table grows. At the limit new origins are refused, and
// the oldest of the remembered releases is forgotten. A message that arrives after thousands of later
// contexts of its origin would therefore make its context live again, until the origin's watermark passes it.
//
// Not thread-safe.
class ContextTable {
 public:
  enum class Entry {
    kNew,       // The context was new and is live now.
    kLive,      // The context was live already.
    kReleased,  // The context was released, and stays so.
    kTooMany,   // The context was new, but a limit is reached. It stays new.
    // The context was new, but the sender has made as many contexts live as it may. It stays new.
    kTooManyOfSender,
  };

  // Maximum number of live contexts. A limit is needed because messages of peers create contexts.
  static constexpr std::size_t kMaxLive = 1 << 20;
  struct Bounds {
    std::size_t live = kMaxLive;
    // Maximum number of origins with a row, and of lost origins that are remembered.
    std::size_t origins = 1 << 16;
    // Maximum number of released counters that are remembered for each origin, and of claims by workers that
    // are not a party.
    std::size_t released = 1 << 12;
    // Maximum number of live contexts that messages of one worker have made live.
    std::size_t live_of_sender = kMaxLive;
  };

  ContextTable() = default;
  explicit ContextTable(const Bounds& bounds) : bounds_(bounds) {}

  // Records that a message of this context arrived from worker `from`, or that the context was opened here
  // (`from` is 0).
  Entry enter(const rpc::Id& context, uint64_t from = 0);
  bool live(const rpc::Id& context) const { return live_.contains(context); }

  // Records that a message of the context is about to be sent to `worker`. Returns false if the context is
  // not live: then no message of the context may be sent.
  bool touch(const rpc::Id& context, uint64_t worker);
  // Returns the workers that messages of the context were sent to.
  std::vector<uint64_t> touched(const rpc::Id& context) const;

  // Records that the origin has released the context, and all of its contexts below `low`. Returns the
  // workers that messages of the context were sent to, which must be notified; nullopt if the context was not
  // live here.
  std::optional<std::vector<uint64_t>> release(const rpc::Id& context, uint64_t low);
  // Returns the live contexts of `origin` below its watermark. Their release is on its way from another
  // worker, or was lost with a worker.
  std::vector<rpc::Id> overdue(uint64_t origin) const;

  struct Ended {
    rpc::Id context;
    // The workers that must be notified.
    std::vector<uint64_t> touched;
  };
  struct Cleanup {
    // The context is live and was not ended, because the sender is neither its origin nor a party.
    bool refused = false;
    std::vector<Ended> ended;
  };
  // Processes a CLEANUP of worker `from`.
  Cleanup cleanup(const rpc::Id& context, uint64_t low, uint64_t from);

  // Returns the watermark of the origin `self`: the lowest counter of its live contexts. `next`: the lowest
  // counter that it has not allocated.
  uint64_t low(uint64_t self, uint64_t next) const;

  // Records that the worker was lost: its contexts never become live again. Returns those that are live.
  std::vector<rpc::Id> origin_lost(uint64_t origin);
  // Records that the worker was lost and need not be notified of releases. Ends and returns the contexts that
  // have no party left and whose end another worker had claimed before.
  std::vector<Ended> worker_lost(uint64_t worker);

  std::size_t size() const { return live_.size(); }
  // For tests and statistics: number of released counters and claims that are remembered, over all origins.
  std::size_t remembered() const;
  // Number of live contexts that messages of this worker have made live.
  std::size_t opened_by(uint64_t worker) const { return opened_.count(worker); }
  // For tests and statistics: number of origins with a row.
  std::size_t origins() const { return origins_.size(); }

 private:
  struct Row {
    // The workers that messages of the context were sent to.
    HashSet<uint64_t> touched;
    // The workers that sent messages of the context here.
    HashSet<uint64_t> senders;
    // The worker whose message made the context live; 0: it was opened here.
    uint64_t opener = 0;

    bool has_party(uint64_t worker) const { return touched.contains(worker) || senders.contains(worker); }
    bool has_parties() const { return !touched.empty() || !senders.empty(); }
  };
  struct Origin {
    // The watermark: all contexts with a lower counter are released.
    uint64_t low = 0;
    // The counters of live contexts.
    absl::btree_set<uint64_t> live;
    // The counters of released contexts at or above `low`.
    absl::btree_set<uint64_t> released;
    // Pairs of the counter of a context and a worker that claimed its end without being a party.
    absl::btree_set<std::pair<uint64_t, uint64_t>> claims;
  };

  // Returns the row of the origin, new if necessary; nullptr at the limit.
  Origin* row_of(uint64_t origin);
  bool is_lost(uint64_t origin) const { return lost_.contains(origin); }
  void remember_released(Origin& origin, uint64_t counter);
  // Ends `context` here although its origin has not reported the end.
  void end(const rpc::Id& context, std::vector<Ended>& ended);

  Bounds bounds_;
  HashMap<rpc::Id, Row> live_;
  HashMap<uint64_t, Origin> origins_;
  // The live contexts of each opener.
  rpc::WorkerCounts opened_;
  rpc::GoneWorkers lost_{bounds_.origins};
};

}  // namespace gradwire::autograd
