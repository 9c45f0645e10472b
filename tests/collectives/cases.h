#pragma once

#include "gradwire/collectives/process_group.h"

namespace gradwire::collectives {

// A case of the conformance suite. It runs on a world with any backend and of any size; the ranks may be
// threads or processes. All ranks must call the cases in the same order. A case leaves the world usable. For
// a wrong result it throws std::runtime_error, which names the operation.
struct Case {
  const char* name;
  void (*run)(ProcessGroup& world);
};

// Compares all reductions that the backend supports (support.h) with a reference, for all dtypes; checks that
// the others are refused.
void check_reductions(ProcessGroup& group);
// Checks the operations that copy data between ranks, for all dtypes.
void check_copies(ProcessGroup& group);
// Checks that a minimum or maximum is NaN if one of the inputs is NaN.
void check_nan(ProcessGroup& group);
// Checks tensors with strides, and tensors that are larger than any internal buffer.
void check_strided_and_long(ProcessGroup& group);
// Checks every operation: if support.h lists it as supported, it works; otherwise it is refused, even if only
// one rank calls it.
void check_every_operation(ProcessGroup& group);
// Checks groups that contain only some ranks of the world, also two of them at the same time.
void check_groups(ProcessGroup& world);
// Checks that reductions of half and bfloat16 round the result once.
void check_rounding(ProcessGroup& group);
// Checks coalesced calls, tensors of different shapes, sparse tensors, and batches of messages.
void check_together(ProcessGroup& group);
// Checks the order, the tags and the sources of messages.
void check_messages(ProcessGroup& group);

inline constexpr Case kCases[] = {{"Reductions", &check_reductions},
                                  {"Copies", &check_copies},
                                  {"Nan", &check_nan},
                                  {"StridedAndLong", &check_strided_and_long},
                                  {"EveryOperation", &check_every_operation},
                                  {"Rounding", &check_rounding},
                                  {"Together", &check_together},
                                  {"Groups", &check_groups},
                                  {"Messages", &check_messages}};

}  // namespace gradwire::collectives
