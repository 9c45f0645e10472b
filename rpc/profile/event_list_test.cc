#include "gradwire/rpc/profile/event_list.h"

#include <gtest/gtest.h>

#include <limits>

namespace gradwire::rpc {
namespace {

using Events = google::protobuf::RepeatedPtrField<proto::ProfiledEvent>;

TEST(EventList, TimesAreThoseSinceTheHandlerBegan) {
  EventList list("handler", 1000);
  const std::size_t outer = list.begin("outer", 1010);
  const std::size_t inner = list.begin("inner", 1020);
  list.end(inner, 1030);
  list.end(outer, 1050);
  Events events;
  list.take(1100, events);
  ASSERT_EQ(events.size(), 3);
  EXPECT_EQ(events.Get(0).name(), "handler");
  EXPECT_EQ(events.Get(0).length_ns(), 100);
  EXPECT_EQ(events.Get(1).begin_ns(), 10);
  EXPECT_EQ(events.Get(1).length_ns(), 40);
  EXPECT_EQ(events.Get(2).begin_ns(), 20);
  EXPECT_EQ(events.Get(2).length_ns(), 10);
  // An event that ends after the answer was made.
  list.end(outer, 2000);
  list.take(2000, events);
  EXPECT_EQ(events.size(), 3);
}

TEST(EventList, NumberAndNamesAreBounded) {
  EventList list("handler", 0);
  const std::string name(1'000'000, 'x');
  for (std::size_t i = 0; i < 2 * kMostEvents; ++i) list.end(list.begin(name, 1), 2);
  Events events;
  list.take(3, events);
  EXPECT_EQ(static_cast<std::size_t>(events.size()), kMostEvents);
  EXPECT_EQ(events.Get(1).name().size(), kMostNameBytes);
}

TEST(PlaceEvents, TheHandlerIsInTheMiddleOfTheCall) {
  Events events;
  events.Add()->set_length_ns(40);
  proto::ProfiledEvent& inner = *events.Add();
  inner.set_begin_ns(10);
  inner.set_length_ns(5);
  const auto placed = place_events(events, 1000, 1100);
  ASSERT_EQ(placed.size(), 2u);
  EXPECT_EQ(placed[0].begin, 1030);
  EXPECT_EQ(placed[0].end, 1070);
  EXPECT_EQ(placed[1].begin, 1040);
  EXPECT_EQ(placed[1].end, 1045);
}

TEST(PlaceEvents, HostileEventsStayWithinTheCall) {
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  Events events;
  for (const int64_t begin : {kMin, int64_t{-1}, int64_t{50}, kMax}) {
    for (const int64_t length : {kMax, kMin, int64_t{50}}) {
      proto::ProfiledEvent& event = *events.Add();
      event.set_begin_ns(begin);
      event.set_length_ns(length);
      event.set_name(std::string(10'000, 'x'));
    }
  }
  while (static_cast<std::size_t>(events.size()) < 3 * kMostEvents) events.Add();
  const auto placed = place_events(events, 1000, 1100);
  EXPECT_EQ(placed.size(), kMostEvents);
  for (const RemoteEvent& event : placed) {
    EXPECT_GE(event.begin, 1000);
    EXPECT_LE(event.begin, event.end);
    EXPECT_LE(event.end, 1100);
    EXPECT_LE(event.name.size(), kMostNameBytes);
  }
  // A clock that went back during the call.
  for (const RemoteEvent& event : place_events(events, 1000, 900)) {
    EXPECT_EQ(event.begin, 1000);
    EXPECT_EQ(event.end, 1000);
  }
}

}  // namespace
}  // namespace gradwire::rpc
