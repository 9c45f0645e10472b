#pragma once

#include "gradwire/autograd/context/contexts.h"
#include "gradwire/autograd/context/graph_planter.h"
#include "gradwire/autograd/pass/pass_table.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/rpc/agent/extension.h"

namespace gradwire::autograd {

// Serves the messages of proto/autograd.proto that one agent receives. Thread-safe. The constructor's
// arguments must outlive this object.
class MessageServer {
 public:
  MessageServer(rpc::AgentServices& agent, Contexts& contexts, PassTable& passes, GraphPlanter& planter)
      : agent_(agent), contexts_(contexts), passes_(passes), planter_(planter) {}

  void serve(const rpc::ServiceCall& call);

 private:
  // Parses the message and calls `use(message)`; replies InvalidArgument if the message is malformed.
  template <class M, class Use>
  static void with_message(const rpc::ServiceCall& call, Use use);
  // Also finds the pass of the message and calls `use(pass, message)`; replies with the error if it fails.
  template <class M, class Use>
  void with_pass(const rpc::ServiceCall& call, Use use) const;
  void run(const rpc::ServiceCall& call, const std::shared_ptr<Pass>& pass, proto::Run message);

  rpc::AgentServices& agent_;
  Contexts& contexts_;
  PassTable& passes_;
  GraphPlanter& planter_;
  // The measured cost of a RUN that is not handed to a waiting thread.
  TaskCost run_cost_;
};

}  // namespace gradwire::autograd
