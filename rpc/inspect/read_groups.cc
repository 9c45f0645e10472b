#include "gradwire/rpc/inspect/read_groups.h"

#include <string>

#include "gradwire/collectives/flight/flight_recorder.h"
#include "gradwire/rpc/inspect/limits.h"

namespace gradwire::rpc {
namespace {

using collectives::FlightRecorder;

void describe(const FlightRecorder::Seen& seen, proto::CollectiveState& out) {
  out.set_operation(std::string(collectives::name_of(seen.operation)));
  out.set_sequence(seen.sequence == FlightRecorder::kNoSequence ? -1 : static_cast<int64_t>(seen.sequence));
  out.set_state(static_cast<proto::CollectiveState::State>(seen.state));
  out.set_age_us(absl::ToInt64Microseconds(seen.age));
  out.set_peer(seen.peer);
}

}  // namespace

void read_groups(uint32_t most, proto::AgentState& state) {
  const FlightRecorder::Views views = FlightRecorder::view_all(most);
  state.set_groups_total(views.total);
  for (const FlightRecorder::View& view : views.recorders) {
    proto::ProcessGroupState& group = *state.add_groups();
    group.set_title(std::string(cut_name(view.title)));
    group.set_recorded(view.recorded);
    if (view.last) describe(*view.last, *group.mutable_last());
    if (view.oldest_open) describe(*view.oldest_open, *group.mutable_oldest());
  }
}

}  // namespace gradwire::rpc
