#include "transport/conformance.h"

#include "transport/loopback/loopback_transport.h"
#include "transport/tcp/tcp_transport.h"

namespace gradwire::transport {
namespace {

std::string kind_name(const testing::TestParamInfo<TransportKind>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Tcp, TransportConformance,
                         testing::Values(TransportKind{"tcp", [] { return make_tcp_transport(); }}),
                         kind_name);

INSTANTIATE_TEST_SUITE_P(TcpOnIpv4, TransportConformance,
                         testing::Values(TransportKind{"tcp_ipv4",
                                                       [] {
                                                         TcpOptions options;
                                                         options.bind_address = "127.0.0.1";
                                                         return make_tcp_transport(options);
                                                       }}),
                         kind_name);

INSTANTIATE_TEST_SUITE_P(Loopback, TransportConformance,
                         testing::Values(TransportKind{"loopback", [] { return make_loopback_transport(); },
                                                       true}),
                         kind_name);

}  // namespace
}  // namespace gradwire::transport
