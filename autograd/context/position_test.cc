#include "gradwire/autograd/context/position.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>

#include <memory>

#include "gtest/gtest.h"

namespace gradwire::autograd {
namespace {

std::shared_ptr<const ActiveContext> active_in(Timeline::Path path) {
  return ActiveContext({1, 1}, 1).serving(std::move(path));
}

TEST(Position, CallIsReadWhereItWasMade) {
  const auto active = active_in({{3, 14}, {1, 5}});
  ActiveContextSlot::Scope scope(active);
  const uint64_t before = at::sequence_number::get_and_increment();
  PositionField field;
  write_position(*active, field);
  const uint64_t after = at::sequence_number::get_and_increment();

  const auto path = read_position(field);
  ASSERT_TRUE(path.has_value());
  ASSERT_EQ(path->size(), 3u);
  EXPECT_EQ((*path)[0], (Timeline::Moment{3, 14}));
  EXPECT_EQ((*path)[1], (Timeline::Moment{1, 5}));
  const uint64_t thread = at::RecordFunction::currentThreadId();
  EXPECT_LT(active->timeline().place(thread, before).moment, (*path)[2]);
  EXPECT_LT((*path)[2], active->timeline().place(thread, after).moment);
}

TEST(Position, HalfPairsAndTooDeepCallsAreRefused) {
  PositionField field;
  EXPECT_TRUE(read_position(field).has_value()) << "an empty position belongs to the outermost program";
  field.Add(1);
  EXPECT_FALSE(read_position(field).has_value());
  while (field.size() < static_cast<int>(2 * Timeline::kMaxDepth)) field.Add(1);
  EXPECT_TRUE(read_position(field).has_value());
  field.Add(1);
  field.Add(1);
  EXPECT_FALSE(read_position(field).has_value());
}

TEST(ActiveContextSlot, ThreadThatMakesNothingLeavesNoTrace) {
  const auto active = active_in({});
  for (int i = 0; i < 10; ++i) ActiveContextSlot::Scope scope(active);
  EXPECT_EQ(active->timeline().intervals(), 0u);
  {
    ActiveContextSlot::Scope scope(active);
    at::sequence_number::get_and_increment();
  }
  EXPECT_EQ(active->timeline().intervals(), 1u);
}

}  // namespace
}  // namespace gradwire::autograd
