#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "rpc/id.h"

namespace gradwire::autograd {

// Which contexts live on a worker, which were released, and where else they have been: bookkeeping alone.
//
// A context is new (nothing is known of it), live, or released. Released contexts must be told from new ones
// for as long as a late message may come, without a tombstone for each for ever: per origin the table keeps a
// low watermark, below which everything is released, and the released counters above it. The origin knows its
// watermark, the lowest counter of a live context, and sends it along with every release.
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

  // A message of this context arrived, or it was opened here.
  Entry enter(const rpc::Id& context);
  bool live(const rpc::Id& context) const { return live_.contains(context); }

  // A message of the context is about to go to `worker`. False when the context is not live: then nothing may
  // be sent in its name.
  bool touch(const rpc::Id& context, uint64_t worker);
  // Whom messages of the context went to.
  std::vector<uint64_t> touched(const rpc::Id& context) const;

  // The context was released, and every one of its origin below `low`. Returns whom its messages went to, who
  // must be told; nothing when it was not live here.
  std::optional<std::vector<uint64_t>> release(const rpc::Id& context, uint64_t low);
  // Live contexts of `origin` below its watermark: their release is on its way from elsewhere, or was lost
  // with a worker.
  std::vector<rpc::Id> overdue(uint64_t origin) const;
  // What the origin `self` says of its own contexts, `next` being the lowest counter that it has not
  // allocated: the lowest of a live one.
  uint64_t low(uint64_t self, uint64_t next) const;

  // The worker is gone: nothing of its contexts will be live again. Returns those that are.
  std::vector<rpc::Id> origin_lost(uint64_t origin);
  // The worker is gone and need not be told of releases.
  void worker_lost(uint64_t worker);

  std::size_t size() const { return live_.size(); }
  // Tombstones, for tests.
  std::size_t remembered() const;

 private:
  struct Origin {
    uint64_t low = 0;
    absl::btree_set<uint64_t> live;
    // At or above `low`.
    absl::btree_set<uint64_t> released;
  };

  absl::flat_hash_map<rpc::Id, absl::flat_hash_set<uint64_t>> live_;
  absl::flat_hash_map<uint64_t, Origin> origins_;
};

}  // namespace gradwire::autograd
