#include "gradwire/autograd/graph/timeline.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"

namespace gradwire::autograd {
namespace {

using Position = Timeline::Position;

constexpr uint64_t kThread = 7, kOther = 8;

// Expects that the places are in this order, the oldest first.
void expect_ascending(const std::vector<Position>& places) {
  for (std::size_t i = 0; i < places.size(); ++i) {
    for (std::size_t k = 0; k < places.size(); ++k) {
      EXPECT_EQ(Timeline::older(places[i], places[k]), i < k) << i << " and " << k;
    }
  }
}

TEST(Timeline, NodesOfOneFrameAreInTheOrderOfCreation) {
  Timeline timeline;
  timeline.enter(timeline.add_frame({}), kThread, 10);
  expect_ascending({timeline.place(kThread, 9), timeline.place(kThread, 10), timeline.place(kThread, 12)});
}

TEST(Timeline, NodesOfACallAreBetweenTheCallersNodesBeforeAndAfterIt) {
  Timeline timeline;
  const auto program = timeline.add_frame({});
  timeline.enter(program, kThread, 10);
  const Timeline::Path path = timeline.path_of_call(kThread, 14);
  // The same worker serves the call, on a thread whose numbers are small.
  timeline.enter(timeline.add_frame(path), kOther, 1);
  expect_ascending({timeline.place(kThread, 13), timeline.place(kThread, 14), timeline.place(kOther, 1),
                    timeline.place(kOther, 2), timeline.place(kThread, 15)});
}

TEST(Timeline, CallsAreInTheOrderOfCallingAndNotOfServing) {
  Timeline caller, callee;
  caller.enter(caller.add_frame({}), kThread, 0);
  const Timeline::Path first = caller.path_of_call(kThread, 3), second = caller.path_of_call(kThread, 4);
  callee.enter(callee.add_frame(second), kThread, 100);
  callee.enter(callee.add_frame(first), kOther, 900);
  expect_ascending({callee.place(kOther, 900), callee.place(kOther, 950), callee.place(kThread, 100),
                    callee.place(kThread, 101)});
}

TEST(Timeline, NestedCallIsWithinTheCallThatMadeIt) {
  Timeline a, b, c;
  a.enter(a.add_frame({}), kThread, 0);
  b.enter(b.add_frame(a.path_of_call(kThread, 5)), kThread, 50);
  // b calls c within a's call to b; a itself calls c before and after that.
  const Timeline::Path nested = b.path_of_call(kThread, 60);
  const Timeline::Path later = a.path_of_call(kThread, 6);
  const Timeline::Path earlier = a.path_of_call(kThread, 4);
  c.enter(c.add_frame(later), kThread, 0);
  c.enter(c.add_frame(nested), kThread, 10);
  c.enter(c.add_frame(earlier), kThread, 20);
  expect_ascending({c.place(kThread, 25), c.place(kThread, 15), c.place(kThread, 5)});
}

TEST(Timeline, WorkThatMovesBetweenThreadsContinuesItsFrame) {
  Timeline timeline;
  const auto frame = timeline.add_frame({});
  timeline.enter(frame, kThread, 100);
  timeline.enter(frame, kOther, 5);
  timeline.enter(frame, kThread, 110);
  expect_ascending({timeline.place(kThread, 105), timeline.place(kOther, 6), timeline.place(kThread, 110)});
}

TEST(Timeline, ThreadThatServesAnotherCallWhileItWaitsContinuesAfterwards) {
  Timeline timeline;
  const auto outer = timeline.add_frame({{0, 1}});
  const auto inner = timeline.add_frame({{0, 2}});
  timeline.enter(outer, kThread, 0);
  timeline.enter(inner, kThread, 3);
  timeline.enter(outer, kThread, 5);
  expect_ascending({timeline.place(kThread, 2), timeline.place(kThread, 6), timeline.place(kThread, 4)});
}

TEST(Timeline, NodesMadeOutsideAreOlderThanAllNodesMadeInside) {
  Timeline timeline;
  timeline.enter(timeline.add_frame({}), kThread, 10);
  expect_ascending({timeline.place(kThread, 3), timeline.place(kOther, 1), timeline.place(kOther, 99),
                    timeline.place(kThread, 10)});
}

TEST(Timeline, CallsThatMadeNothingAreForgotten) {
  Timeline timeline;
  const auto program = timeline.add_frame({});
  timeline.enter(program, kThread, 10);
  for (int i = 0; i < 100; ++i) {
    const auto frame = timeline.add_frame({{0, 1}});
    timeline.enter(frame, kOther, 50);
    timeline.leave_unused(*frame, kOther, 50);
    timeline.enter(program, kThread, 10 + i);
  }
  EXPECT_EQ(timeline.intervals(), 1u);
}

TEST(Timeline, PathsAreCutAtTheMaximumDepth) {
  Timeline::Path path;
  Timeline::Path deeper;
  for (std::size_t depth = 0; depth < Timeline::kMaxDepth + 3; ++depth) {
    Timeline timeline;
    timeline.enter(timeline.add_frame(path), kThread, 0);
    deeper = timeline.path_of_call(kThread, 1);
    EXPECT_EQ(deeper.size(), std::min(depth + 1, Timeline::kMaxDepth));
    path = deeper;
  }
  Timeline timeline;
  timeline.enter(timeline.add_frame(path), kThread, 0);
  timeline.enter(timeline.add_frame(deeper), kOther, 0);
  // The paths are equal, so the calls are ordered by arrival.
  const Position first = timeline.place(kThread, 1), second = timeline.place(kOther, 1);
  EXPECT_NE(Timeline::older(first, second), Timeline::older(second, first));
}

}  // namespace
}  // namespace gradwire::autograd
