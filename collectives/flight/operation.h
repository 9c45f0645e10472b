#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace gradwire::collectives {

// What a group can be asked to do, as records and messages name it.
enum class Operation : uint8_t {
  kBroadcast,
  kReduce,
  kAllReduce,
  kGather,
  kAllGather,
  kScatter,
  kReduceScatter,
  kAllToAll,
  kBarrier,
  kMonitoredBarrier,
  kAllGatherIntoTensor,
  kReduceScatterTensor,
  kAllToAllSingle,
  kSend,
  kReceive,
  kBroadcastObject,
  kAllGatherObject,
  kGatherObject,
  kScatterObject,
  kNewGroup,
  kBroadcastMultigpu,
  kAllReduceMultigpu,
  kReduceMultigpu,
  kAllGatherMultigpu,
};

inline absl::string_view name_of(Operation operation) {
  constexpr absl::string_view kNames[] = {"broadcast",
                                          "reduce",
                                          "all_reduce",
                                          "gather",
                                          "all_gather",
                                          "scatter",
                                          "reduce_scatter",
                                          "all_to_all",
                                          "barrier",
                                          "monitored_barrier",
                                          "all_gather_into_tensor",
                                          "reduce_scatter_tensor",
                                          "all_to_all_single",
                                          "send",
                                          "recv",
                                          "broadcast_object",
                                          "all_gather_object",
                                          "gather_object",
                                          "scatter_object",
                                          "new_group",
                                          "broadcast_multigpu",
                                          "all_reduce_multigpu",
                                          "reduce_multigpu",
                                          "all_gather_multigpu"};
  return kNames[static_cast<uint8_t>(operation)];
}

inline bool is_point_to_point(Operation operation) {
  return operation == Operation::kSend || operation == Operation::kReceive;
}

// One call, described: what the flight recorder keeps and the consistency check compares.
struct OperationRecord {
  static constexpr int kNoPeer = -1;
  static constexpr int kMostSizes = 6;

  Operation operation = Operation::kBarrier;
  // A ReduceOp, or -1.
  int8_t reduction = -1;
  bool multiplies = false;
  // Of the tensor; the first kMostSizes of `dimensions` sizes, cut off at 2^32 - 1.
  uint8_t dimensions = 0;
  uint32_t sizes[kMostSizes] = {};
  // Of all sizes, where `sizes` does not hold them whole; else 0.
  uint64_t shape_hash = 0;
  // Their product.
  int64_t elements = 0;
  // A string that lives for ever; nullptr where there is no tensor.
  const char* dtype = nullptr;
  // The rank of the world that a rooted operation has as its root, or that a message goes to or comes from.
  int32_t peer = kNoPeer;
  int32_t tag = 0;
};

}  // namespace gradwire::collectives
