#pragma once

#include <cstddef>

namespace gradwire::store {

// Bounds on what a store accepts from its callers and from other processes. They are far above what names,
// addresses and counters need, and far below what would exhaust a host. A received length is checked against
// them before memory is allocated for it.
inline constexpr std::size_t kMaxKeyBytes = std::size_t{64} << 10;
inline constexpr std::size_t kMaxValueBytes = std::size_t{64} << 20;
// Number of keys in one call.
inline constexpr std::size_t kMaxKeysPerWait = std::size_t{1} << 16;
// Size of the keys and values of one multi_set, and of the values of one multi_get.
inline constexpr std::size_t kMaxMultiBytes = kMaxValueBytes + kMaxKeyBytes;
// Size of the names that list_keys returns. kListedKeyBytes, the memory for a string without its text, are
// added to the size of each name: many short names must not take far more memory than one long one.
inline constexpr std::size_t kMaxListBytes = kMaxValueBytes;
inline constexpr std::size_t kListedKeyBytes = 32;
inline constexpr std::size_t kMaxListedKeys = kMaxListBytes / kListedKeyBytes;
// Added to the size of an item of a queue, so that empty items count too.
inline constexpr std::size_t kQueueItemBytes = 64;
// Size of one call on the wire: a value of the largest size, its key, an expected value of the same size and
// framing.
inline constexpr std::size_t kMaxMessageBytes = 2 * kMaxValueBytes + 2 * kMaxKeyBytes + 4096;
// Total size of the keys, values and queues in one store.
inline constexpr std::size_t kMaxStoreBytes = std::size_t{4} << 30;
// Number of calls that may wait in one server at the same time; the memory that the waiting calls of one
// connection may take; the memory that all waiting calls may take.
inline constexpr std::size_t kMaxWaiters = std::size_t{1} << 20;
inline constexpr std::size_t kMaxWaitingBytes = std::size_t{256} << 20;
inline constexpr std::size_t kMaxAllWaitingBytes = std::size_t{1} << 30;
// Size of the answers that one client has asked for but not read; further calls are refused. If a client lets
// kMaxRefusalBytes of refusals accumulate, its connection is closed.
inline constexpr std::size_t kMaxUnreadBytes = std::size_t{1} << 30;
inline constexpr std::size_t kMaxRefusalBytes = std::size_t{1} << 20;

}  // namespace gradwire::store
