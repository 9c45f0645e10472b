#pragma once

#include <cstddef>

namespace gradwire::store {

// Bounds on what a store takes from its callers and from other processes. They are far above what names,
// addresses and counters need and far below what would exhaust a host: a length that arrives is compared with
// them before memory is set aside for it.
inline constexpr std::size_t kMaxKeyBytes = std::size_t{64} << 10;
inline constexpr std::size_t kMaxValueBytes = std::size_t{64} << 20;
// Keys of one wait.
inline constexpr std::size_t kMaxKeysPerWait = std::size_t{1} << 16;
// All of one call on the wire: a value of the largest size, its key, an expected value of the same size and
// framing.
inline constexpr std::size_t kMaxMessageBytes = 2 * kMaxValueBytes + 2 * kMaxKeyBytes + 4096;
// Keys and values that one store holds.
inline constexpr std::size_t kMaxStoreBytes = std::size_t{4} << 30;
// Calls that wait in one server at the same time, and the memory that those of one connection and those of
// all may take.
inline constexpr std::size_t kMaxWaiters = std::size_t{1} << 20;
inline constexpr std::size_t kMaxWaitingBytes = std::size_t{256} << 20;
inline constexpr std::size_t kMaxAllWaitingBytes = std::size_t{1} << 30;
// Answers that one client has asked for and not read; what it asks for beyond them is refused, and a client
// that lets kMaxRefusalBytes of refusals pile up is hung up on.
inline constexpr std::size_t kMaxUnreadBytes = std::size_t{1} << 30;
inline constexpr std::size_t kMaxRefusalBytes = std::size_t{1} << 20;

}  // namespace gradwire::store
