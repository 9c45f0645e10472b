#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>

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

// Answers the requests of a HandOver on a thread of its own, until it is destroyed.
class HandOverServer {
 public:
  // `serve` does the work of one request, and returns whether the caller sleeps until the reply. While no
  // request is there, the thread waits like await_change(), with `active` of `words` if `spins`.
  HandOverServer(HandOver& words, bool spins, std::function<bool()> serve, int polls = 1000);
  HandOverServer(const HandOverServer&) = delete;
  HandOverServer& operator=(const HandOverServer&) = delete;
  ~HandOverServer();

 private:
  void run();

  HandOver& words_;
  const std::atomic<uint32_t>* const active_;
  const std::function<bool()> serve_;
  const int polls_;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace gradwire::bench
