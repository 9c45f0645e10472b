#include "gradwire/autograd/context/position.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>

namespace gradwire::autograd {

void write_position(const ActiveContext& active, PositionField& out) {
  // A new sequence number, which no node has, stands for the moment of the call.
  const uint64_t now = at::sequence_number::get_and_increment();
  const Timeline::Path path = active.timeline().path_of_call(at::RecordFunction::currentThreadId(), now);
  out.Reserve(static_cast<int>(2 * path.size()));
  for (const Timeline::Moment& moment : path) {
    out.Add(moment.interval);
    out.Add(moment.tick);
  }
}

// The field comes from a peer. A position that does not fit is refused; wrong numbers in it can only change
// the order in which gradients are added.
std::optional<Timeline::Path> read_position(const PositionField& in) {
  if (in.size() % 2 != 0 || in.size() > static_cast<int>(2 * Timeline::kMaxDepth)) return std::nullopt;
  Timeline::Path path;
  for (int i = 0; i < in.size(); i += 2) path.push_back({in.Get(i), in.Get(i + 1)});
  return path;
}

}  // namespace gradwire::autograd
