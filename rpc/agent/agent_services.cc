#include "gradwire/rpc/agent/agent_services.h"

#include "gradwire/base/error.h"
#include "gradwire/rpc/agent/agent_impl.h"
#include "gradwire/rpc/link/link.h"

namespace gradwire::rpc {

AgentServices::AgentServices() = default;
AgentServices::~AgentServices() = default;

const Worker& AgentServices::self() const { return impl_->runtime.self; }
Id AgentServices::next_id() { return impl_->runtime.next_id(); }
const std::shared_ptr<ThreadPool>& AgentServices::executor() const { return impl_->runtime.executor; }
TimerQueue& AgentServices::timers() const { return *impl_->runtime.timers; }
Caller& AgentServices::caller() const { return *impl_->caller; }
RRefService& AgentServices::rrefs() const { return *impl_->rrefs; }

const std::vector<std::unique_ptr<AgentExtension>>& AgentServices::extensions() const {
  return impl_->runtime.extensions;
}

absl::StatusOr<Worker> AgentServices::find_worker(const Destination& destination) const {
  GRADWIRE_ASSIGN_OR_RETURN(std::shared_ptr<Peer> peer, impl_->caller->find(destination));
  return peer->worker;
}

absl::StatusOr<Worker> AgentServices::find_worker_by_incarnation(uint64_t incarnation) const {
  return impl_->peers->find_by_incarnation(incarnation);
}

absl::Status AgentServices::worker_status(const Worker& worker) const { return impl_->peers->status(worker); }

void AgentServices::on_accused(uint64_t incarnation) { impl_->membership->worker_accused(incarnation); }

Future<ServiceReply> AgentServices::call_service(const Worker& to, uint32_t service, std::string body,
                                                 std::unique_ptr<TensorSet> tensors,
                                                 const ServiceOptions& options) {
  return impl_->caller->call_service(to, service, std::move(body), std::move(tensors), options);
}

absl::Time AgentServices::call_deadline(const std::optional<absl::Duration>& timeout) const {
  return impl_->caller->deadline(timeout);
}

absl::StatusOr<transport::Buffer> AgentServices::allocate_for(const Destination& to, std::size_t size) {
  GRADWIRE_RETURN_IF_ERROR(impl_->runtime.accepts_calls());
  GRADWIRE_ASSIGN_OR_RETURN(std::shared_ptr<Peer> peer, impl_->caller->find(to));
  GRADWIRE_ASSIGN_OR_RETURN(std::shared_ptr<Link> link, impl_->peers->link_to(peer));
  return link->allocate(size);
}

}  // namespace gradwire::rpc
