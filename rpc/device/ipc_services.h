#pragma once

#include <cstdint>

namespace gradwire::rpc {

// Service numbers of the channel "ipc" (proto/rpc.proto, "Transfers").
inline constexpr uint32_t kTransfersConsumed = 8;
inline constexpr uint32_t kTransfersReclaim = 9;
inline constexpr uint32_t kSharingProbe = 10;

}  // namespace gradwire::rpc
