#include "gradwire/transport/ucx/ucx_transport.h"

#include "gradwire/transport/conformance.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

TransportKind kind(const std::string& name, const std::string& methods, bool sleeps_at_once = false) {
  return {name,
          [methods, sleeps_at_once] {
            UcxOptions options;
            options.methods = methods;
            if (sleeps_at_once) options.wait = {absl::ZeroDuration(), absl::ZeroDuration()};
            return make_ucx_transport(options);
          },
          false, false};
}

INSTANTIATE_TEST_SUITE_P(Ucx, TransportConformance,
                         testing::Values(kind("ucx", ""), kind("tcp", "tcp"), kind("sleeping", "", true)),
                         [](const auto& info) { return info.param.name; });

TEST(Ucx, IsThere) { EXPECT_TRUE(probe_ucx().ok()) << probe_ucx(); }

}  // namespace
}  // namespace gradwire::transport
