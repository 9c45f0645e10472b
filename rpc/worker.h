#pragma once

#include <cstdint>
#include <string>

namespace gradwire::rpc {

// How programs name a worker.
struct WorkerInfo {
  std::string name;
  int32_t id = -1;

  friend bool operator==(const WorkerInfo&, const WorkerInfo&) = default;
};

// A worker as the layers below the public surface know it: the incarnation tells a worker from a later one
// that took over its name and id. Random, new at every start, never 0.
struct Worker {
  std::string name;
  int32_t id = -1;
  uint64_t incarnation = 0;

  WorkerInfo info() const { return {name, id}; }
  friend bool operator==(const Worker&, const Worker&) = default;
};

}  // namespace gradwire::rpc
