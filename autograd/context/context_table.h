#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "gradwire/codec/id.h"
#include "gradwire/rpc/membership/gone_workers.h"

namespace gradwire::autograd {

// Keeps which contexts live on a worker, which were released, where else they have been, and who may end
// them: bookkeeping alone.
//
// A context is new (nothing is known of it), live, or released. Released contexts must be distinguished from
// new ones while a late message may still come. Per origin the table keeps a low watermark, below which
// everything is released, and the released counters above it. The origin knows its watermark, the lowest
// counter of a live context, and sends it along with every release.
//
// The origin ends a context, and a party does: a worker that sent a message of the context here, or got one
// from here. What any other worker says is kept against that worker alone: its release may have overtaken its
// own first message, which must be refused then, but the context lives on for the others. The watermark is
// the origin's: from others it ends only contexts in which they take part, or which have no party left.
//
// Every table has a limit, and is counted before it grows. At a limit new origins are refused, and of what is
// remembered the oldest is forgotten: a message that comes later than thousands of later contexts of its
// origin would make its context live again, until the origin's watermark passes it.
//
// Not thread-safe.
class ContextTable {
 public:
  enum class Entry {
    kNew,   // Was new and is live now.
    kLive,  // Was live.
    kReleased,
    kTooMany,  // Was new, but as many as can be are live already.
  };

  // Contexts that may live at a time: what arrives from peers creates them.
  static constexpr std::size_t kMaxLive = 1 << 20;
  struct Limits {
    std::size_t live = kMaxLive;
    // Origins with a row, and lost ones that are remembered.
    std::size_t origins = 1 << 16;
    // Released counters that are remembered for each origin, and as many releases by workers that are not a
    // party.
    std::size_t released = 1 << 12;
  };

  ContextTable() = default;
  explicit ContextTable(const Limits& limits) : limits_(limits) {}

  // A message of this context arrived from `from`, or it was opened here (0).
  Entry enter(const rpc::Id& context, uint64_t from = 0);
  bool live(const rpc::Id& context) const { return live_.contains(context); }

  // A message of the context is about to go to `worker`. False when the context is not live: then nothing may
  // be sent in its name.
  bool touch(const rpc::Id& context, uint64_t worker);
  // The workers that messages of the context went to.
  std::vector<uint64_t> touched(const rpc::Id& context) const;

  // The context was released, and every one of its origin below `low`: the origin says so. Returns the
  // workers that its messages went to, which must be notified; nothing when it was not live here.
  std::optional<std::vector<uint64_t>> release(const rpc::Id& context, uint64_t low);
  // Live contexts of `origin` below its watermark: their release is on its way from elsewhere, or was lost
  // with a worker.
  std::vector<rpc::Id> overdue(uint64_t origin) const;

  struct Ended {
    rpc::Id context;
    // The workers that must be notified.
    std::vector<uint64_t> touched;
  };
  struct Cleanup {
    // The context lives, and the sender is neither its origin nor a party: it was not ended.
    bool refused = false;
    std::vector<Ended> ended;
  };
  // CLEANUP came from `from`.
  Cleanup cleanup(const rpc::Id& context, uint64_t low, uint64_t from);

  // The watermark of the origin `self`: the lowest counter of its live contexts. `next`: the lowest counter
  // that it has not allocated.
  uint64_t low(uint64_t self, uint64_t next) const;

  // The worker is gone: nothing of its contexts will be live again. Returns those that are.
  std::vector<rpc::Id> origin_lost(uint64_t origin);
  // The worker is gone and need not be notified of releases. Returns what ended with it: contexts without a
  // party left whose end another worker had said before.
  std::vector<Ended> worker_lost(uint64_t worker);

  std::size_t size() const { return live_.size(); }
  // For tests and statistics: tombstones of all kinds, but for lost origins; and rows of origins.
  std::size_t remembered() const;
  std::size_t origins() const { return origins_.size(); }

 private:
  struct Row {
    absl::flat_hash_set<uint64_t> touched;
    // The workers that sent messages of the context here.
    absl::flat_hash_set<uint64_t> heard;

    bool has_party(uint64_t worker) const { return touched.contains(worker) || heard.contains(worker); }
    bool has_parties() const { return !touched.empty() || !heard.empty(); }
  };
  struct Origin {
    uint64_t low = 0;
    absl::btree_set<uint64_t> live;
    // At or above `low`.
    absl::btree_set<uint64_t> released;
    // Counter, and the worker that said the end of this context and was no party of it.
    absl::btree_set<std::pair<uint64_t, uint64_t>> foretold;
  };

  // nullptr where there are too many.
  Origin* row_of(uint64_t origin);
  bool is_lost(uint64_t origin) const { return lost_.contains(origin); }
  void remember_released(Origin& origin, uint64_t counter);
  // `context` ends here without a word of the origin's.
  void end(const rpc::Id& context, std::vector<Ended>& ended);

  Limits limits_;
  absl::flat_hash_map<rpc::Id, Row> live_;
  absl::flat_hash_map<uint64_t, Origin> origins_;
  rpc::GoneWorkers lost_{limits_.origins};
};

}  // namespace gradwire::autograd
