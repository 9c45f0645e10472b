#pragma once

#include <memory>

#include "gradwire/gateway/options/options.h"
#include "gradwire/rpc/calls/agent.h"

namespace gradwire::gateway {

// Serves proto/gateway.proto over gRPC: programs in any language call the workers of the agent's group.
// docs/gateway.md describes it. Thread-safe. While it exists, the Protobuf library logs nothing in this
// process: otherwise any program that reaches the port could fill the log. Example, in a worker:
//
//   gateway::Server server(agent, {.address = "127.0.0.1:7700"});
//   ...
//   server.shutdown();
class Server {
 public:
  // Listens when it returns. Throws Error: InvalidArgument for options that contradict each other, or files
  // of certificates that cannot be read; FailedPrecondition for an open address without TLS and token
  // (Options::insecure); Unavailable if the address is in use.
  explicit Server(std::shared_ptr<rpc::Agent> agent, Options options = {});
  // Shuts down.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // The port that it listens on.
  int port() const;

  // The objects in the sessions of all clients, and the calls in flight.
  std::size_t objects() const;
  std::size_t calls() const;

  // Ends all sessions, accepts no more calls, and waits for those in flight, at most for Options::drain; then
  // it cancels them. Idempotent. Call it before the agent shuts down.
  void shutdown();

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace gradwire::gateway
