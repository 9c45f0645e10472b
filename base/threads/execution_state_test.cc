#include "gradwire/base/threads/execution_state.h"

#include <thread>

#include "gtest/gtest.h"

namespace gradwire {
namespace {

using Number = ExecutionSlot<int>;
struct OtherTag;
using OtherNumber = ExecutionSlot<int, OtherTag>;

int number() { return Number::get() == nullptr ? 0 : *Number::get(); }
int other() { return OtherNumber::get() == nullptr ? 0 : *OtherNumber::get(); }

TEST(ExecutionState, CaptureAndRestoreCarryEverySlot) {
  ExecutionState state;
  {
    Number::Scope scope(std::make_shared<int>(7));
    OtherNumber::Scope other_scope(std::make_shared<int>(8));
    state = ExecutionState::capture();
  }
  EXPECT_EQ(number(), 0);
  {
    ScopedExecutionState scope(state);
    EXPECT_EQ(number(), 7);
    EXPECT_EQ(other(), 8);
  }
  EXPECT_EQ(number(), 0);
  EXPECT_EQ(other(), 0);
}

TEST(ExecutionState, DefaultStateIsClean) {
  Number::Scope scope(std::make_shared<int>(7));
  {
    ScopedExecutionState clean;
    EXPECT_EQ(number(), 0);
    Number::set(std::make_shared<int>(9));
  }
  EXPECT_EQ(number(), 7);
}

TEST(ExecutionState, BelongsToTheThread) {
  Number::Scope scope(std::make_shared<int>(7));
  const ExecutionState state = ExecutionState::capture();
  std::thread([&state] {
    EXPECT_EQ(number(), 0);
    ScopedExecutionState scope(state);
    EXPECT_EQ(number(), 7);
  }).join();
}

TEST(ExecutionState, OwnsTheCapturedValues) {
  std::weak_ptr<const int> watched;
  {
    ExecutionState state;
    {
      auto value = std::make_shared<const int>(7);
      watched = value;
      Number::Scope scope(std::move(value));
      state = ExecutionState::capture();
    }
    EXPECT_FALSE(watched.expired());
  }
  EXPECT_TRUE(watched.expired());
}

TEST(ExecutionSlot, ScopesNest) {
  Number::Scope outer(std::make_shared<int>(1));
  {
    Number::Scope inner(std::make_shared<int>(2));
    EXPECT_EQ(number(), 2);
  }
  EXPECT_EQ(number(), 1);
}

}  // namespace
}  // namespace gradwire
