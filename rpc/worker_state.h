#pragma once

namespace gradwire::rpc {

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
