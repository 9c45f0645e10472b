#include "gradwire/tests/device_calls/carried.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <utility>

#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/agent/agent_hooks.h"
#include "gradwire/transport/fault_injection.h"
#include "gradwire/transport/tcp/tcp_transport.h"

namespace gradwire::rpc {
namespace {

constexpr std::array<const char*, 3> kTransports = {"shm", "tcp", "striped"};

std::size_t index_of(const std::string& transport) {
  for (std::size_t i = 0; i < kTransports.size(); ++i) {
    if (transport == kTransports[i]) return i;
  }
  ADD_FAILURE() << "unknown transport \"" << transport << "\"";
  return 0;
}

}  // namespace

struct Carried::Counts {
  struct OfTransport {
    std::atomic<uint64_t> bytes{0};
    std::atomic<uint64_t> parts{0};
  };
  std::array<OfTransport, kTransports.size()> transports;
  std::atomic<bool> cut{false};
};

Carried::Carried() : counts_(std::make_shared<Counts>()) {}

RpcBackendOptions Carried::over(const std::string& transport, RpcBackendOptions options) const {
  const bool striped = transport == "striped";
  options.transports = {striped ? "tcp" : transport};
  options.hooks = wrap_transports([counts = counts_, striped](std::unique_ptr<transport::Transport> inner) {
    const std::size_t index = index_of(striped ? "striped" : inner->name());
    if (striped) {
      transport::TcpOptions tcp;
      tcp.stripes = kStripes;
      tcp.stripe_from_bytes = std::size_t{1} << 20;
      inner = transport::make_tcp_transport(std::move(tcp));
    }
    return transport::make_fault_injecting_transport(
        std::move(inner),
        [counts, index](transport::Direction direction,
                        const transport::Message& message) -> transport::Fault {
          if (direction == transport::Direction::kOutgoing) return {};
          Counts::OfTransport& arrived = counts->transports[index];
          for (const transport::Buffer& buffer : message.buffers) arrived.bytes += buffer.size();
          proto::Envelope envelope;
          if (!envelope.ParseFromString(message.header) || !envelope.has_part()) return {};
          ++arrived.parts;
          if (counts->cut.exchange(false)) return {transport::Fault::Kind::kCut, {}};
          return {};
        });
  });
  return options;
}

uint64_t Carried::bytes(const std::string& transport) const {
  return counts_->transports[index_of(transport)].bytes;
}

uint64_t Carried::parts(const std::string& transport) const {
  return counts_->transports[index_of(transport)].parts;
}

void Carried::expect_only(const std::string& transport, uint64_t bytes) const {
  EXPECT_GE(this->bytes(transport), bytes) << transport;
  for (const char* const other : kTransports) {
    if (transport != other) EXPECT_EQ(this->bytes(other), 0u) << other;
  }
}

void Carried::cut_at_next_part() { counts_->cut = true; }

}  // namespace gradwire::rpc
