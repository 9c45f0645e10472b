#pragma once

#include "gradwire/autograd/context/contexts.h"
#include "gradwire/autograd/context/graph_planter.h"
#include "gradwire/autograd/pass/pass_table.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/rpc/agent/extension.h"

namespace gradwire::autograd {

// Serves the messages of proto/autograd.proto that come to one agent. Thread-safe. Its arguments outlive it.
class MessageServer {
 public:
  MessageServer(rpc::AgentServices& agent, Contexts& contexts, PassTable& passes, GraphPlanter& planter)
      : agent_(agent), contexts_(contexts), passes_(passes), planter_(planter) {}

  void serve(const rpc::ServiceCall& call);

 private:
  // Calls `use(message)`, or replies that the call has none.
  template <class M, class Use>
  static void with_message(const rpc::ServiceCall& call, Use use);
  // Calls `use(pass, message)`, or replies with the error.
  template <class M, class Use>
  void with_pass(const rpc::ServiceCall& call, Use use) const;
  void run(const rpc::ServiceCall& call, const std::shared_ptr<Pass>& pass, proto::Run message);

  rpc::AgentServices& agent_;
  Contexts& contexts_;
  PassTable& passes_;
  GraphPlanter& planter_;
  // The cost of a RUN that no thread waits for.
  TaskCost run_cost_;
};

}  // namespace gradwire::autograd
