#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/proto/rpc.pb.h"

namespace gradwire::rpc {

// Bounds on the events of one handler, at its worker and at the worker that receives them.
inline constexpr std::size_t kMostEvents = 512;
inline constexpr std::size_t kMostNameBytes = 256;

// The events of one handler while it runs. Not thread-safe.
class EventList {
 public:
  using Time = int64_t;  // In nanoseconds.
  static constexpr std::size_t kNone = ~std::size_t{0};

  // The handler itself, which is the first event, begins.
  EventList(absl::string_view handler, Time now) : begin_(now) { (void)begin(handler, now); }

  // Adds an event. Returns its index for end(), or kNone if the list is full.
  std::size_t begin(absl::string_view name, Time now);
  void end(std::size_t index, Time now);

  // Moves the events to `out`. Those that have not ended get the length that they have so far.
  void take(Time now, google::protobuf::RepeatedPtrField<proto::ProfiledEvent>& out);

 private:
  struct Event {
    std::string name;
    Time begin = 0;
    Time length = -1;
  };
  Time begin_;
  std::vector<Event> events_;
};

// An event of a callee in the clock of the caller.
struct RemoteEvent {
  std::string name;
  int64_t begin = 0;  // In nanoseconds.
  int64_t end = 0;
};
// Checks the events of an answer to a call that took from `begin` to `end` at the caller. The clocks of the
// two workers need not agree: the handler is placed in the middle of the call. All results lie within the
// call.
std::vector<RemoteEvent> place_events(const google::protobuf::RepeatedPtrField<proto::ProfiledEvent>& events,
                                      int64_t begin, int64_t end);

}  // namespace gradwire::rpc
