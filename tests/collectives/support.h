#pragma once

#include <string>

#include "gradwire/collectives/backend.h"
#include "gradwire/collectives/flight/operation.h"
#include "gradwire/collectives/reduce_op.h"

namespace gradwire::collectives {

// What each backend can do: the tables of docs/collectives.md. The conformance suite does what stands here as
// done, and sees the rest refused.

// Where the caller's tensors are.
enum class TensorDevice { kCpu, kCuda };

// kOther: those that libtorch has no arithmetic for on every device, like complex32 and uint16.
enum class DtypeClass { kInteger, kBool, kFloating, kComplex, kOther };

enum class Support {
  // InvalidArgument, before anything is sent.
  kNo,
  kYes,
  // In a CUDA build, by way of the host; else kNo.
  kStaged,
  // Where Open MPI says that it can; else kNo.
  kIfAware,
};

inline constexpr Backend kBackends[] = {Backend::kCpu, Backend::kMpi, Backend::kNccl};
inline constexpr TensorDevice kTensorDevices[] = {TensorDevice::kCpu, TensorDevice::kCuda};
inline constexpr DtypeClass kDtypeClasses[] = {DtypeClass::kInteger, DtypeClass::kBool, DtypeClass::kFloating,
                                               DtypeClass::kComplex, DtypeClass::kOther};
inline constexpr ReduceOp kReduceOps[] = {ReduceOp::kSum,  ReduceOp::kProduct, ReduceOp::kMin,
                                          ReduceOp::kMax,  ReduceOp::kBand,    ReduceOp::kBor,
                                          ReduceOp::kBxor, ReduceOp::kAvg};
// Of tensors of all dtypes, but for reductions. What has no tensor of the caller's is the same for every
// device. kNewGroup is of no backend.
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
// Whether recv takes any source, and whether a rank can send to itself.
bool receives_from_any(Backend backend);
bool sends_to_itself(Backend backend);
// Whether the reductions that the backend has take such an `op` of such a dtype.
bool reduces(Backend backend, const Reduction& op, DtypeClass dtype);

// All of this in Markdown, as docs/collectives.md has it between its marks.
std::string support_tables();

}  // namespace gradwire::collectives
