#pragma once

namespace gradwire::rpc {

// What one worker knows of another. kSuspect: silent, or its connection broke; it may come back to kAlive. The last two
// are for good: a worker that is started again under the name is a new one.
enum class WorkerState { kAlive, kSuspect, kDead, kLeft };

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
