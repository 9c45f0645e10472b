#pragma once

#include <cstdint>
#include <optional>

#include "google/protobuf/repeated_field.h"
#include "gradwire/autograd/context/contexts.h"
#include "gradwire/autograd/graph/timeline.h"

// The wire format of a call's position in the order of a single process (Graph.position in
// proto/value.proto).
namespace gradwire::autograd {

using PositionField = google::protobuf::RepeatedField<uint64_t>;

// Writes the position of a call that the calling thread makes now, while it works in `active`. The nodes that
// the thread made before, including the send node of the call, are older than the callee's nodes. The nodes
// that it makes afterwards are younger.
void write_position(const ActiveContext& active, PositionField& out);
// Returns nullopt if the position is malformed.
std::optional<Timeline::Path> read_position(const PositionField& in);

}  // namespace gradwire::autograd
