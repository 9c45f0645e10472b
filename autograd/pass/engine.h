#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/autograd/context/contexts.h"
#include "gradwire/autograd/context/graph_planter.h"
#include "gradwire/autograd/context/step_barrier_driver.h"
#include "gradwire/autograd/pass/pass_table.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/core/extension.h"

namespace gradwire::metrics {
class Registry;
}  // namespace gradwire::metrics

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

// The autograd part of one agent. Thread-safe; owned by the agent.
class Engine : public rpc::AgentExtension {
 public:
  explicit Engine(rpc::AgentServices& agent);

  // Returns the agent's engine. FailedPrecondition if the agent started before //autograd was loaded (as a
  // plugin).
  static absl::StatusOr<Engine*> of(const rpc::Agent& agent);

  Contexts& contexts() { return contexts_; }
  StepBarrierDriver& barrier() { return *barrier_; }
  PassTable& passes() { return passes_; }
  GraphPlanter& planter() { return planter_; }

  // Interface for objects that are notified of lost workers and released contexts. Its methods are called
  // without locks and must not block.
  struct Watcher {
    virtual ~Watcher() = default;
    virtual void worker_lost(const rpc::Worker& worker, const absl::Status& reason) = 0;
    virtual void context_released(const rpc::Id& context) = 0;
    virtual void shutdown(const absl::Status& reason) = 0;
  };
  // Notifies `watcher` as long as it exists.
  void watch(const std::weak_ptr<Watcher>& watcher);

  // Returns the object that the users of this agent share under `name`. It exists as long as one of them
  // holds it. Calls `make` if it does not exist, and always for an empty name.
  std::shared_ptr<void> shared(const std::string& name, const std::function<std::shared_ptr<void>()>& make);

  absl::string_view name() const override { return "autograd"; }
  bool gives_back(uint32_t service) const override;
  bool serves(uint32_t service) const override;
  bool serves_on_arrival(uint32_t service) const override;
  void serve(rpc::ServiceCall call) override;
  void worker_lost(const rpc::Worker& worker, const absl::Status& reason) override;
  bool idle() const override;
  void inspect(uint32_t most, proto::AgentState& state) const override;
  void shutdown(const absl::Status& reason) override;
  rpc::GraphHook* graph_hook() override { return &planter_; }
  void collect(metrics::Samples& samples) const override;
  // Counts a pass of which this worker was the root.
  void pass_ended(const absl::Status& status, absl::Duration took) const;

 private:
  void released(const std::shared_ptr<ContextState>& context);
  std::vector<std::shared_ptr<Watcher>> watchers();

  rpc::AgentServices& agent_;
  // nullptr if the agent keeps no metrics.
  const std::shared_ptr<metrics::Registry> metrics_;
  const std::shared_ptr<StepBarrierDriver> barrier_;
  Contexts contexts_;
  GraphPlanter planter_;
  PassTable passes_;
  MessageServer server_;

  Mutex mutex_;
  HashMap<std::string, std::weak_ptr<void>> shared_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<Watcher>> watchers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::autograd
