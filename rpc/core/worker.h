#pragma once

#include "gradwire/base/cpp20.h"

#include <cstdint>
#include <string>

namespace gradwire::rpc {

// The name and id by which programs refer to a worker.
struct WorkerInfo {
  std::string name;  // Unique among the workers of the group.
  int32_t id = -1;   // Unique: the rank; in an open group without a rank, the next free number.

  // Whether both have the same name and id.
  friend bool operator==(const WorkerInfo&, const WorkerInfo&) = default;
};

// A worker as the internal layers know it. The incarnation distinguishes it from a later worker with the same
// name and id. It is a random number, new at every start, never 0.
struct Worker {
  std::string name;          // As WorkerInfo's.
  int32_t id = -1;           // As WorkerInfo's.
  uint64_t incarnation = 0;  // 0 in an empty Worker.

  // The worker without its incarnation.
  WorkerInfo info() const { return {name, id}; }
  // Whether both are the same incarnation of the same worker.
  friend bool operator==(const Worker&, const Worker&) = default;
};

// The state of a worker as another worker knows it.
enum class WorkerState {
  // It answers, or no failure of it is known.
  kAlive,
  // It is silent, or its connection broke. It may return to kAlive.
  kSuspect,
  // Declared dead, permanently. A process that is started again under the name is a new worker.
  kDead,
  // It has left with shutdown(), permanently.
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
