#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/core/options.h"

namespace gradwire::tests {

// A worker of a Job.
struct Member {
  std::string name;
  // Without a store the worker uses that of the job.
  rpc::RpcBackendOptions options = {};
};

// A job of several agents in this process, which meet over a store in a file and call each other over shared
// memory and tcp, as workers of one host do.
class Job {
 public:
  // The ranks are in the order of the members. Throws Error if an agent cannot start.
  explicit Job(std::vector<Member> members);
  // Ends all agents at once: calls in progress fail.
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  const std::shared_ptr<rpc::Agent>& operator[](std::size_t rank) const { return agents_.at(rank); }
  // The store, as --store of tools/inspect.
  std::string place() const { return "file://" + path_; }

 private:
  const std::string path_;
  std::vector<std::shared_ptr<rpc::Agent>> agents_;
};

// A path in the folder of the test that no other caller in this process has got.
std::string new_path(const std::string& name);

}  // namespace gradwire::tests
