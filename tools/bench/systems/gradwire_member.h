#pragma once

#include <memory>
#include <string>

#include "gradwire/tools/bench/run/bench_process.h"

namespace gradwire::rpc {
class Agent;
}
namespace gradwire::store {
class TcpStore;
}

namespace gradwire::bench {

class BenchCertificates;

// A Gradwire worker. Its name is "w<rank>"; member 0 hosts the store.
class GradwireMember : public BenchProcess {
 public:
  GradwireMember();
  ~GradwireMember() override;
  std::string listen(const Endpoint& endpoint) override;
  void join(const Endpoint& endpoint) override;

 protected:
  const Endpoint& endpoint() const { return endpoint_; }
  const std::shared_ptr<rpc::Agent>& agent() const { return agent_; }

 private:
  Endpoint endpoint_;
  std::unique_ptr<BenchCertificates> certificates_;
  std::shared_ptr<store::TcpStore> store_;
  std::shared_ptr<rpc::Agent> agent_;
};

// In this order: the suites rpc and scale; the suite rref; its cases in which a worker is lost; the suite
// autograd.
std::unique_ptr<BenchProcess> make_gradwire_rpc();
std::unique_ptr<BenchProcess> make_gradwire_rref();
std::unique_ptr<BenchProcess> make_gradwire_loss();
std::unique_ptr<BenchProcess> make_gradwire_autograd();

}  // namespace gradwire::bench
