#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/base/future.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/collectives/cpu/mesh/mesh_link.h"
#include "gradwire/collectives/cpu/span.h"

// What a MeshCore keeps of operations and of ranks.
namespace gradwire::collectives::cpu {

// A message of this rank's that is under way. Guarded by MeshCore::mutex_; while it is busy the thread that uses it reads
// what was given.
struct MeshSend {
  enum class Stage {
    kQueued,     // For the connection, or for a receive of this rank's own.
    kAnnounced,  // It has not been asked for.
    kBusy,       // A thread uses it.
    kLeaving,    // The transport still reads the data.
  };
  Stage stage = Stage::kQueued;
  int dst;
  uint64_t channel;
  int64_t tag;
  Span data;
  absl::Time deadline;
  Promise<void> promise;
  std::shared_ptr<MeshLink> link;
  uint64_t ticket = 0;
  bool eager = false;
  // In MeshPeer::announced: neither answered nor taken back. Only then an answer is heard.
  bool counted = false;
  // While it is busy: what came meanwhile.
  bool asked = false;
  bool refused = false;
  bool left = false;
  absl::Status ended;
};

// A receive that waits, or that is being written to.
struct MeshReceive {
  explicit MeshReceive(std::shared_ptr<Executor> executor) : promise(std::move(executor)) {}

  uint64_t id = 0;
  int src = 0;
  uint64_t channel = 0;
  int64_t tag = 0;
  Span data;
  absl::Time deadline;
  Promise<int> promise;
  std::weak_ptr<MeshCore> core;
  // Nobody writes to `data` any more; and somebody waits for that.
  std::atomic<bool> done{false};
  std::atomic<bool> awaited{false};
};

// What a mesh knows of another rank. Guarded by MeshCore::mutex_.
struct MeshPeer {
  enum class State { kIdle, kWanted, kConnecting, kOpen };
  State state = State::kIdle;
  absl::Time connect_by;
  // The record that it has published, and how many of its addresses have been tried.
  std::string record;
  std::size_t tried = 0;
  std::string failures;
  std::shared_ptr<MeshLink> out;  // Messages go to it here.
  std::shared_ptr<MeshLink> in;   // And come from it here.
  std::deque<uint64_t> queue;     // Sends that wait for `out`.
  uint64_t eager_bytes = 0;       // That it has not returned.
  std::size_t announced = 0;
  bool lost = false;
};

}  // namespace gradwire::collectives::cpu
