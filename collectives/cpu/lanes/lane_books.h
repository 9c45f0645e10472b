#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/base/future.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/collectives/cpu/lanes/lane.h"
#include "gradwire/collectives/cpu/span.h"

// What a LaneCore keeps of operations and of ranks. Guarded by LaneCore::mutex_.
namespace gradwire::collectives::cpu {

// Of a Matcher that serves one group alone.
inline constexpr uint64_t kLaneChannel = 0;

// What all members see of one, beside the lanes that it writes.
struct LaneBell {
  enum State : uint32_t {
    kIdle,      // Ring when a lane is full.
    kAttended,  // Somebody looks.
    kArmed,     // Ring for whatever you write.
  };
  alignas(128) std::atomic<uint32_t> state;
  // Where it ran when it wrote last, and 1; 0 before.
  std::atomic<int32_t> core;
  // What threads sleep on.
  alignas(128) std::atomic<uint32_t> bell;
};

// A message of this rank's that is under way.
struct LaneSend {
  enum class Stage {
    kQueued,     // Nothing of it has been written.
    kWriting,    // Begun, or asked for.
    kAnnounced,  // Not asked for.
  };
  explicit LaneSend(std::shared_ptr<Executor> executor) : promise(std::move(executor)) {}

  Stage stage = Stage::kQueued;
  uint64_t id = 0;
  int dst = 0;
  int64_t tag = 0;
  Span data;
  absl::Time deadline;
  bool eager = false;    // In the window.
  bool counted = false;  // In LanePeer::announced.
  std::size_t written = 0;
  Promise<void> promise;
  absl::Status result;
};

// A receive that waits or is being written to.
struct LaneReceive {
  explicit LaneReceive(std::shared_ptr<Executor> executor) : promise(std::move(executor)) {}

  uint64_t id = 0;
  int src = 0;
  int64_t tag = 0;
  Span data;
  absl::Time deadline;
  Promise<int> promise;
  absl::StatusOr<int> result = 0;
};

// A message that comes in pieces.
struct LaneStream {
  uint64_t size = 0;
  uint64_t got = 0;
  bool unasked = false;
  bool unwanted = false;
  std::shared_ptr<LaneReceive> receive;  // Once it is matched.
  std::unique_ptr<char[]> held;          // Until then.
};
// What a rank knows of another one.
struct LanePeer {
  std::optional<LaneWriter> out;
  std::optional<LaneReader> in;
  LaneBell* bell = nullptr;
  std::deque<std::variant<LaneRecord, std::shared_ptr<LaneSend>>> queue;
  uint64_t eager_bytes = 0;   // That it has not returned.
  std::size_t announced = 0;  // That it has not answered.
  absl::flat_hash_map<uint64_t, LaneStream> streams;
  uint64_t unasked = 0;  // Of streams the one that was not asked for and goes on; 0: none.
  bool lost = false;
};

}  // namespace gradwire::collectives::cpu
