#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "gradwire/rpc/core/agent_statistics.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/link/peers.h"
#include "gradwire/rpc/runtime/runtime.h"
#include "gradwire/transport/buffer_pool.h"
#include "gradwire/transport/http/http_server.h"
#include "gradwire/transport/shm/shm_transport.h"

namespace gradwire::rpc {

// Makes the text of an agent's metrics, and serves it over HTTP. What the agent counts anyway is read when
// somebody asks for the text; only the rest is counted in a registry. Thread-safe, except serve() and stop().
class AgentMetrics {
 public:
  // The parts of the agent that it reads. They must outlive it, or stop() if nobody else asks for the text.
  struct Sources {
    const AgentRuntime& runtime;
    const Peers& peers;
    const transport::ShmCounters& shm;
    const transport::BufferPool& pool;
    std::function<AgentStatistics()> statistics;
    std::function<AgentTables()> tables;
  };
  explicit AgentMetrics(Sources sources) : sources_(std::move(sources)) {}

  // As Agent::metrics_text() and Agent::metrics_address().
  std::string text() const;
  std::string address() const { return server_ == nullptr ? std::string() : server_->address(); }

  // Serves the text where the options or the environment say. Errors: those of HttpServer::start().
  absl::Status serve();
  // Ends the server. Idempotent.
  void stop();

 private:
  const Sources sources_;
  // Set by serve(); constant while the agent runs.
  std::unique_ptr<transport::HttpServer> server_;
};

}  // namespace gradwire::rpc
