#pragma once

#include <cstdint>
#include <optional>

#include "google/protobuf/repeated_field.h"
#include "gradwire/autograd/context/active_context.h"
#include "gradwire/autograd/graph/timeline.h"

// Where a call stands in the order of a single process, on the wire (Graph.position in proto/value.proto).
namespace gradwire::autograd {

using PositionField = google::protobuf::RepeatedField<uint64_t>;

// The calling thread, which works in `active`, makes a call now. Nodes that it made before, the send node of
// the call included, are older than the callee's nodes; nodes that it makes afterwards are younger.
void write_position(const ActiveContext& active, PositionField& out);
// Nothing when it is malformed.
std::optional<Timeline::Path> read_position(const PositionField& in);

}  // namespace gradwire::autograd
