#pragma once

#include <string>

#include "gradwire/collectives/backend.h"
#include "gradwire/collectives/flight/operation.h"
#include "gradwire/collectives/reduce_op.h"

namespace gradwire::collectives {

// The operations and reductions that each backend supports: the tables of docs/collectives.md. The
// conformance suite runs everything that is supported, and checks that the rest is refused.

// The device of the caller's tensors.
enum class TensorDevice { kCpu, kCuda };

// kOther: dtypes that lack arithmetic on some device of libtorch, for example complex32 and uint16.
enum class DtypeClass { kInteger, kBool, kFloating, kComplex, kOther };

enum class Support {
  // Refused with InvalidArgument before anything is sent.
  kNo,
  kYes,
  // Supported in a CUDA build, through the memory of the host; else kNo.
  kStaged,
  // Supported if Open MPI reports that it supports CUDA; else kNo.
  kIfAware,
};

inline constexpr Backend kBackends[] = {Backend::kCpu, Backend::kMpi, Backend::kNccl};
inline constexpr TensorDevice kTensorDevices[] = {TensorDevice::kCpu, TensorDevice::kCuda};
inline constexpr DtypeClass kDtypeClasses[] = {DtypeClass::kInteger, DtypeClass::kBool, DtypeClass::kFloating,
                                               DtypeClass::kComplex, DtypeClass::kOther};
inline constexpr ReduceOp kReduceOps[] = {ReduceOp::kSum,  ReduceOp::kProduct, ReduceOp::kMin,
                                          ReduceOp::kMax,  ReduceOp::kBand,    ReduceOp::kBor,
                                          ReduceOp::kBxor, ReduceOp::kAvg};
// The operations in the table, in its order. All of them except reductions support all dtypes. Operations
// without tensors of the caller have the same support for every device. kNewGroup is not in it: no backend is
// involved.
inline constexpr Operation kOperations[] = {Operation::kBroadcast,
                                            Operation::kReduce,
                                            Operation::kAllReduce,
                                            Operation::kGather,
                                            Operation::kAllGather,
                                            Operation::kAllGatherIntoTensor,
                                            Operation::kScatter,
                                            Operation::kReduceScatter,
                                            Operation::kReduceScatterTensor,
                                            Operation::kAllToAll,
                                            Operation::kAllToAllSingle,
                                            Operation::kSend,
                                            Operation::kReceive,
                                            Operation::kBarrier,
                                            Operation::kMonitoredBarrier,
                                            Operation::kBroadcastObject,
                                            Operation::kAllGatherObject,
                                            Operation::kGatherObject,
                                            Operation::kScatterObject,
                                            Operation::kBroadcastMultigpu,
                                            Operation::kAllReduceMultigpu,
                                            Operation::kReduceMultigpu,
                                            Operation::kAllGatherMultigpu};

Support support_of(Backend backend, TensorDevice device, Operation operation);
// Whether recv supports any source.
bool receives_from_any(Backend backend);
// Whether a rank can send to itself.
bool sends_to_itself(Backend backend);
// Whether the backend supports this reduction for this class of dtypes.
bool reduces(Backend backend, const Reduction& op, DtypeClass dtype);

// The tables in Markdown, as they are between the marks in docs/collectives.md.
std::string support_tables();

}  // namespace gradwire::collectives
