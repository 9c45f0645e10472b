#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "gradwire/rpc/core/options.h"

namespace gradwire::rpc {

// Counts the bytes that arrive at the agents of a test, by the transport that carried them. A test that
// chooses a transport asks it whether that transport was used. Thread-safe.
class Carried {
 public:
  Carried();

  // Returns `options` for agents that use only this transport: "shm", "tcp", or "striped", which is tcp with
  // kStripes stripes.
  RpcBackendOptions over(const std::string& transport, RpcBackendOptions options) const;

  static constexpr int kStripes = 3;

  // Bytes of buffers that have arrived so far, and Parts (proto/rpc.proto, "Parts").
  uint64_t bytes(const std::string& transport) const;
  uint64_t parts(const std::string& transport) const;
  // Fails the test unless at least `bytes` bytes of buffers have arrived, all of them over this transport.
  void expect_only(const std::string& transport, uint64_t bytes) const;

  // The next Part that arrives is lost with its connection.
  void cut_at_next_part();

 private:
  struct Counts;
  const std::shared_ptr<Counts> counts_;
};

}  // namespace gradwire::rpc
