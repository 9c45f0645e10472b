#pragma once

#include <cstdint>
#include <string>

namespace gradwire::rpc {

// How programs name a worker.
struct WorkerInfo {
  std::string name;  // Unique among the workers of the group.
  int32_t id = -1;   // Unique too: the rank; in an open group, where no rank is given, the next free number.

  // Whether both have the same name and id.
  friend bool operator==(const WorkerInfo&, const WorkerInfo&) = default;
};

// A worker as the layers below the public surface know it: the incarnation tells a worker from a later one
// that took over its name and id. Random, new at every start, never 0.
struct Worker {
  std::string name;          // As WorkerInfo's.
  int32_t id = -1;           // As WorkerInfo's.
  uint64_t incarnation = 0;  // 0 for a Worker that stands for nobody.

  // Without the incarnation.
  WorkerInfo info() const { return {name, id}; }
  // Whether both are the same incarnation of the same worker.
  friend bool operator==(const Worker&, const Worker&) = default;
};

// What one worker knows of another.
enum class WorkerState {
  // It answers, or nothing is known against it.
  kAlive,
  // Silent, or its connection broke; it may come back to kAlive.
  kSuspect,
  // Declared dead, for good: a worker that is started again under the name is a new one.
  kDead,
  // It has left with shutdown(), for good likewise.
  kLeft,
};

// "alive", "suspect", "dead" or "left"; "" for another value.
constexpr const char* to_string(WorkerState state) {
  switch (state) {
    case WorkerState::kAlive:
      return "alive";
    case WorkerState::kSuspect:
      return "suspect";
    case WorkerState::kDead:
      return "dead";
    case WorkerState::kLeft:
      return "left";
  }
  return "";
}

}  // namespace gradwire::rpc
