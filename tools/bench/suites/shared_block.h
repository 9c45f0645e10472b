#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace gradwire::bench {

// The words over which the two processes of a floor exchange messages, one cache line for each.
struct HandOver {
  alignas(64) std::atomic<uint32_t> request;
  alignas(64) std::atomic<uint32_t> reply;
  // 1 while the caller runs. The callee spins only during that time.
  alignas(64) std::atomic<uint32_t> active;
};

// Creates zeroed memory that other processes can map, and sets `address` to what they pass to
// open_shared_block(). The memory is never unmapped. Throws std::runtime_error.
void* create_shared_block(std::size_t size, std::string& address);
void* open_shared_block(const std::string& address, std::size_t size);

// Waits until `word` differs from `seen`, and returns its value. Spins while `active` is set, and yields
// after `polls` polls; sleeps on the futex if it is not set or is nullptr.
uint32_t await_change(std::atomic<uint32_t>& word, uint32_t seen, const std::atomic<uint32_t>* active,
                      int polls = 1000);

}  // namespace gradwire::bench
