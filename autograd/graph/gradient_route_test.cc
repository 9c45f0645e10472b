#include "gradwire/autograd/graph/gradient_route.h"

#include "gtest/gtest.h"

namespace gradwire::autograd {
namespace {

TEST(GradientRoute, HoldsEachTensorOnceAndTravels) {
  GradientRoute route;
  route.add(7, 1, 2);
  route.add(7, 1, 0);
  route.add(7, 1, 2);
  GradientRoute more;
  more.add(8, 1, 0);
  more.add(7, 1, 0);
  route.add(more);
  EXPECT_EQ(route.tensors(), 3u);
  EXPECT_TRUE(route.contains(7, 1, 2));
  EXPECT_FALSE(route.contains(7, 1, 1));
  EXPECT_FALSE(route.contains(8, 2, 0));

  SentTensorsField field;
  to_proto(route, field);
  ASSERT_EQ(field.size(), 2);
  EXPECT_EQ(field[0].outputs(1), 2u);
  const std::optional<GradientRoute> back = gradient_route_from_proto(field);
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->messages(), route.messages());
}

TEST(GradientRoute, RouteWithTooManyTensorsIsRefused) {
  SentTensorsField field;
  for (uint64_t message = 0; message <= GradientRoute::kMaxTensors; ++message) {
    proto::SentTensors& sent = *field.Add();
    sent.set_message(message);
    sent.add_outputs(0);
  }
  EXPECT_FALSE(gradient_route_from_proto(field).has_value());
  field.RemoveLast();
  EXPECT_TRUE(gradient_route_from_proto(field).has_value());
  SentTensorsField one;
  for (int i = 0; i < 100'000; ++i) {
    if (i == 0) one.Add();
    one.Mutable(0)->add_outputs(static_cast<uint32_t>(i));
  }
  EXPECT_FALSE(gradient_route_from_proto(one).has_value());
}

}  // namespace
}  // namespace gradwire::autograd
