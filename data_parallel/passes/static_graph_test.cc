#include "gradwire/data_parallel/passes/static_graph.h"

#include <gtest/gtest.h>

namespace gradwire::data_parallel {
namespace {

TEST(StaticGraph, TheFirstPassSaysHowManyPartsAGradientHas) {
  StaticGraph graph(3);
  EXPECT_TRUE(graph.recording());
  EXPECT_FALSE(graph.accumulated(0));
  EXPECT_FALSE(graph.accumulated(2));
  EXPECT_FALSE(graph.accumulated(2));
  graph.end_recording();
  EXPECT_FALSE(graph.recording());
  EXPECT_EQ(graph.reached(), (std::vector<bool>{true, false, true}));
  for (int pass = 0; pass < 2; ++pass) {
    graph.begin_pass();
    EXPECT_TRUE(graph.accumulated(0));
    EXPECT_FALSE(graph.accumulated(2));
    EXPECT_TRUE(graph.accumulated(2));
  }
}

TEST(StaticGraph, APartTooManyIsReported) {
  StaticGraph graph(1);
  graph.accumulated(0);
  graph.end_recording();
  graph.begin_pass();
  EXPECT_TRUE(graph.accumulated(0));
  EXPECT_TRUE(graph.accumulated(0));
}

}  // namespace
}  // namespace gradwire::data_parallel
