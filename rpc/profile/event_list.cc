#include "gradwire/rpc/profile/event_list.h"

#include <algorithm>
#include <utility>

namespace gradwire::rpc {

std::size_t EventList::begin(absl::string_view name, Time now) {
  if (events_.size() >= kMostEvents) return kNone;
  events_.push_back({std::string(name.substr(0, kMostNameBytes)), now - begin_});
  return events_.size() - 1;
}

void EventList::end(std::size_t index, Time now) {
  if (index >= events_.size() || events_[index].length >= 0) return;
  events_[index].length = now - begin_ - events_[index].begin;
}

void EventList::take(Time now, google::protobuf::RepeatedPtrField<proto::ProfiledEvent>& out) {
  for (std::size_t i = 0; i < events_.size(); ++i) {
    end(i, now);
    proto::ProfiledEvent& event = *out.Add();
    event.set_name(std::move(events_[i].name));
    event.set_begin_ns(events_[i].begin);
    event.set_length_ns(events_[i].length);
  }
  // Events that end later find an empty list.
  events_.clear();
}

std::vector<RemoteEvent> place_events(const google::protobuf::RepeatedPtrField<proto::ProfiledEvent>& events,
                                      int64_t begin, int64_t end) {
  std::vector<RemoteEvent> placed;
  if (events.empty()) return placed;
  const int64_t call = std::max<int64_t>(end - begin, 0);
  const int64_t handler = std::clamp<int64_t>(events.Get(0).length_ns(), 0, call);
  const int64_t start = begin + (call - handler) / 2;
  for (const proto::ProfiledEvent& event : events) {
    if (placed.size() >= kMostEvents) break;
    // Clamped one after the other, so that no sum overflows.
    const int64_t from = std::clamp<int64_t>(event.begin_ns(), 0, handler);
    const int64_t length = std::clamp<int64_t>(event.length_ns(), 0, handler - from);
    placed.push_back({event.name().substr(0, kMostNameBytes), start + from, start + from + length});
  }
  return placed;
}

}  // namespace gradwire::rpc
