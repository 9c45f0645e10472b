#pragma once

#include <atomic>
#include <memory>

#include "gradwire/gateway/access/access.h"
#include "gradwire/gateway/limits/limits.h"
#include "gradwire/gateway/options/options.h"
#include "gradwire/gateway/serving/callees.h"
#include "gradwire/gateway/serving/stalls.h"
#include "gradwire/gateway/session/sessions.h"
#include "gradwire/rpc/calls/agent.h"

namespace gradwire::gateway {

// Bounds of the protocol (proto/gateway.proto).
inline constexpr std::size_t kMaxMessageBytes = std::size_t{4} << 20;
inline constexpr std::size_t kMaxUnaryBytes = kMaxMessageBytes - (std::size_t{64} << 10);
inline constexpr std::size_t kMaxChunkBytes = std::size_t{1} << 20;

// The parts that all RPCs of one gateway share. Thread-safe.
struct Core {
  Core(std::shared_ptr<rpc::Agent> worker, Options gateway_options);

  const std::shared_ptr<rpc::Agent> agent;
  const Options options;
  const Access access;
  Quotas limits;
  Sessions sessions;
  Stalls stalls;
  const std::shared_ptr<CalleeDirectory> directory;
  // Chooses the next worker for calls that name none.
  std::atomic<uint64_t> turn{0};
};

}  // namespace gradwire::gateway
