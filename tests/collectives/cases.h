#pragma once

#include "gradwire/collectives/process_group.h"

namespace gradwire::collectives {

// The conformance suite: what each rank of a world does, of whatever backend and size, in whatever thread or
// process. Called by all ranks at once, in this order or another that is the same for all; each leaves the
// world as it was. A wrong result throws std::runtime_error that says which.
struct Case {
  const char* name;
  void (*run)(ProcessGroup& world);
};

// All reductions that the backend has (support.h) for all dtypes, against a reference; the others are
// refused.
void check_reductions(ProcessGroup& group);
// What brings data from rank to rank, for all dtypes.
void check_copies(ProcessGroup& group);
// NaN wins over numbers in minimum and maximum.
void check_nan(ProcessGroup& group);
// Tensors with strides, and such as are longer than any buffer.
void check_strided_and_long(ProcessGroup& group);
// Every operation does what support.h says of it: it works, or one rank alone that calls it is refused.
void check_every_operation(ProcessGroup& group);
// Parts of the world do as the world does, and side by side.
void check_groups(ProcessGroup& world);
// Order, tags, sources.
void check_messages(ProcessGroup& group);

inline constexpr Case kCases[] = {{"Reductions", &check_reductions},
                                  {"Copies", &check_copies},
                                  {"Nan", &check_nan},
                                  {"StridedAndLong", &check_strided_and_long},
                                  {"EveryOperation", &check_every_operation},
                                  {"Groups", &check_groups},
                                  {"Messages", &check_messages}};

}  // namespace gradwire::collectives
