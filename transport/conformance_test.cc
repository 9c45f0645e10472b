#include "gradwire/transport/conformance.h"

#include <cstdio>
#include <vector>

#include "gradwire/transport/loopback/loopback_transport.h"
#include "gradwire/transport/shm/shm_transport.h"
#include "gradwire/transport/tcp/tcp_transport.h"

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

INSTANTIATE_TEST_SUITE_P(Shm, TransportConformance,
                         testing::Values(TransportKind{"shm", [] { return make_shm_transport(); }}),
                         kind_name);

// The receiver sleeps at once, so that each message must ring. The ring and the arena are soon full.
INSTANTIATE_TEST_SUITE_P(ShmSmall, TransportConformance,
                         testing::Values(TransportKind{
                             "shm_small",
                             [] {
                               ShmOptions options;
                               options.wait = {absl::ZeroDuration(), absl::ZeroDuration()};
                               options.ring_bytes = 4'096;
                               options.max_ring_buffer_bytes = 512;
                               options.max_arena_bytes = 4 << 20;
                               return make_shm_transport(options);
                             }}),
                         kind_name);

// Most messages of the suite with large buffers are sent over several sockets.
INSTANTIATE_TEST_SUITE_P(TcpStriped, TransportConformance,
                         testing::Values(TransportKind{"tcp_striped",
                                                       [] {
                                                         TcpOptions options;
                                                         options.bind_address = "127.0.0.1";
                                                         options.stripes = 3;
                                                         options.stripe_from_bytes = 64 << 10;
                                                         return make_tcp_transport(options);
                                                       }}),
                         kind_name);

INSTANTIATE_TEST_SUITE_P(TcpThatSleepsAtOnce, TransportConformance,
                         testing::Values(TransportKind{
                             "tcp_sleeping",
                             [] {
                               TcpOptions options;
                               options.wait = {absl::ZeroDuration(), absl::ZeroDuration()};
                               return make_tcp_transport(options);
                             }}),
                         kind_name);

// Empty if this host has no IPv6.
std::vector<TransportKind> kinds_on_ipv6() {
  TcpOptions options;
  options.bind_address = "::1";
  auto listening =
      make_tcp_transport(options)->listen([](const std::shared_ptr<Connection>&) { return nullptr; });
  if (!listening.ok()) {
    std::printf("IPv6 is not tested here: %s\n", listening.status().ToString().c_str());
    return {};
  }
  return {TransportKind{"tcp_ipv6", [options] { return make_tcp_transport(options); }}};
}

INSTANTIATE_TEST_SUITE_P(TcpOnIpv6, TransportConformance, testing::ValuesIn(kinds_on_ipv6()), kind_name);

INSTANTIATE_TEST_SUITE_P(Loopback, TransportConformance,
                         testing::Values(TransportKind{"loopback", [] { return make_loopback_transport(); },
                                                       true, false}),
                         kind_name);

}  // namespace
}  // namespace gradwire::transport
