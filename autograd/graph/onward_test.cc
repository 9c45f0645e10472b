#include "gradwire/autograd/graph/onward.h"

#include "gtest/gtest.h"

namespace gradwire::autograd {
namespace {

TEST(Onward, HoldsEachTensorOnceAndTravels) {
  Onward onward;
  onward.add(7, 1, 2);
  onward.add(7, 1, 0);
  onward.add(7, 1, 2);
  Onward more;
  more.add(8, 1, 0);
  more.add(7, 1, 0);
  onward.add(more);
  EXPECT_EQ(onward.tensors(), 3u);
  EXPECT_TRUE(onward.contains(7, 1, 2));
  EXPECT_FALSE(onward.contains(7, 1, 1));
  EXPECT_FALSE(onward.contains(8, 2, 0));

  SentTensorsField field;
  to_proto(onward, field);
  ASSERT_EQ(field.size(), 2);
  EXPECT_EQ(field[0].outputs(1), 2u);
  const std::optional<Onward> back = onward_from_proto(field);
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->messages(), onward.messages());
}

TEST(Onward, TooManyAreNone) {
  SentTensorsField field;
  for (uint64_t message = 0; message <= Onward::kMaxTensors; ++message) {
    proto::SentTensors& sent = *field.Add();
    sent.set_message(message);
    sent.add_outputs(0);
  }
  EXPECT_FALSE(onward_from_proto(field).has_value());
  field.RemoveLast();
  EXPECT_TRUE(onward_from_proto(field).has_value());
  SentTensorsField one;
  for (int i = 0; i < 100'000; ++i) {
    if (i == 0) one.Add();
    one.Mutable(0)->add_outputs(static_cast<uint32_t>(i));
  }
  EXPECT_FALSE(onward_from_proto(one).has_value());
}

}  // namespace
}  // namespace gradwire::autograd
