#pragma once

#include <memory>
#include <string>

#include "gradwire/tools/bench/run/participant.h"

namespace gradwire::rpc {
class Agent;
}
namespace gradwire::store {
class TcpStore;
}

namespace gradwire::bench {

// A Gradwire worker: member `rank` is "w<rank>", member 0 holds the store.
class GradwireMember : public Participant {
 public:
  GradwireMember();
  ~GradwireMember() override;
  std::string listen(const Place& place) override;
  void join(const Place& place) override;

 protected:
  const Place& place() const { return place_; }
  const std::shared_ptr<rpc::Agent>& agent() const { return agent_; }

 private:
  Place place_;
  std::shared_ptr<store::TcpStore> store_;
  std::shared_ptr<rpc::Agent> agent_;
};

// The suites rpc and scale; rref, and there the cases in which a worker is lost; autograd.
std::unique_ptr<Participant> make_gradwire_rpc();
std::unique_ptr<Participant> make_gradwire_rref();
std::unique_ptr<Participant> make_gradwire_loss();
std::unique_ptr<Participant> make_gradwire_autograd();

}  // namespace gradwire::bench
