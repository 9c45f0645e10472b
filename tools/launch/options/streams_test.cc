#include "gradwire/tools/launch/options/streams.h"

#include <gtest/gtest.h>

namespace gradwire::tools {
namespace {

TEST(StreamRoutes, EachStreamGoesWhereTheOptionsSay) {
  constexpr StreamRoute kConsole{.console = true}, kFile{.file = true}, kBoth{.console = true, .file = true};
  StreamRoutes routes;
  EXPECT_EQ(routes.out_of(0), kConsole);
  EXPECT_FALSE(routes.any_file(4));
  routes.redirects = *StreamSpec::parse("1");
  routes.tee = *StreamSpec::parse("0:1,1:2");
  EXPECT_EQ(routes.out_of(0), kBoth);
  EXPECT_EQ(routes.err_of(0), kConsole);
  EXPECT_EQ(routes.out_of(1), kFile);
  EXPECT_EQ(routes.err_of(1), kBoth);
  EXPECT_TRUE(routes.any_file(1));
}

TEST(StreamRoutes, FilterKeepsLocalRanksFromTheConsole) {
  StreamRoutes routes;
  routes.shown = {1};
  routes.tee = *StreamSpec::parse("2");
  EXPECT_EQ(routes.out_of(1), (StreamRoute{.console = true}));
  EXPECT_EQ(routes.out_of(0), StreamRoute{});
  EXPECT_EQ(routes.err_of(0), (StreamRoute{.file = true}));
  EXPECT_EQ(routes.err_of(1), (StreamRoute{.console = true, .file = true}));
}

}  // namespace
}  // namespace gradwire::tools
