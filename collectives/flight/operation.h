#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace gradwire::collectives {

// The operations of a group, as records and messages name them.
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
  kAllReduceSparse,
  kAllReduceCoalesced,
  kAllGatherCoalesced,
  kReduceScatterCoalesced,
  kCoalesced,
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
                                          "all_gather_multigpu",
                                          "all_reduce_sparse",
                                          "all_reduce_coalesced",
                                          "all_gather_coalesced",
                                          "reduce_scatter_coalesced",
                                          "coalesced"};
  return kNames[static_cast<uint8_t>(operation)];
}

inline bool is_point_to_point(Operation operation) {
  return operation == Operation::kSend || operation == Operation::kReceive;
}

// The description of one call. The flight recorder keeps it, and the consistency check compares it.
struct OperationRecord {
  static constexpr int kNoPeer = -1;
  static constexpr int kMostSizes = 6;

  Operation operation = Operation::kBarrier;
  // The ReduceOp; -1 if the operation does not reduce.
  int8_t reduction = -1;
  bool multiplies = false;
  // The tensor's number of dimensions, and its first kMostSizes sizes. A size over 2^32 - 1 is stored as
  // 2^32 - 1.
  uint8_t dimensions = 0;
  uint32_t sizes[kMostSizes] = {};
  // A hash of all sizes, if `sizes` does not hold all of them exactly; else 0.
  uint64_t shape_hash = 0;
  // The tensor's number of elements.
  int64_t elements = 0;
  // The name of the tensor's dtype, a string with static lifetime; nullptr if there is no tensor.
  const char* dtype = nullptr;
  // A rank of the world: the root of an operation with a root, or the other end of a message.
  int32_t peer = kNoPeer;
  int32_t tag = 0;
  // The size of the tensors that this rank gives to the operation, for its metrics. Not compared.
  uint64_t bytes = 0;
};

}  // namespace gradwire::collectives
