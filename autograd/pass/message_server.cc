#include "gradwire/autograd/pass/message_server.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/autograd/context/services.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/codec/torch/torch_tensors.h"
#include "gradwire/proto/autograd.pb.h"
#include "gradwire/rpc/agent.h"

namespace gradwire::autograd {

template <class M, class Use>
void MessageServer::with_message(const rpc::ServiceCall& call, Use use) {
  M message;
  if (message.ParseFromString(call.body)) return use(message);
  call.reply(absl::InvalidArgumentError(
      absl::StrCat("malformed ", message.GetTypeName(), " message from worker \"", call.from.name, "\"")));
}

template <class M, class Use>
void MessageServer::with_pass(const rpc::ServiceCall& call, Use use) const {
  with_message<M>(call, [&](M& message) {
    auto pass = passes_.find(message.pass(), call.deadline);
    if (!pass.ok()) return call.reply(pass.status());
    use(*pass, message);
  });
}

void MessageServer::serve(const rpc::ServiceCall& call) {
  using PassPtr = std::shared_ptr<Pass>;
  switch (call.service) {
    case kMarkService:
      return with_pass<proto::Mark>(call, [&](const PassPtr& pass, const proto::Mark& mark) {
        pass->wave().mark(call.from, mark, call.reply);
      });
    case kNeededService:
      return with_pass<proto::Needed>(call, [&](const PassPtr& pass, const proto::Needed& needed) {
        pass->wave().need(call.from, needed, call.reply);
      });
    case kRunService:
      return with_pass<proto::Run>(
          call, [&](const PassPtr& pass, proto::Run& message) { run(call, pass, std::move(message)); });
    case kFinishService:
      return with_pass<proto::Finish>(
          call, [&](const PassPtr& pass, const proto::Finish&) { pass->finish(call.reply); });
    case kAbortService:
      return with_message<proto::Abort>(call, [&](const proto::Abort& abort) {
        // An ABORT may overtake the other messages of its pass. find() then makes the pass, which is aborted
        // here, and the later messages are answered with the reason.
        // A released context has no passes left to abort.
        if (auto pass = passes_.find(abort.pass(), call.deadline); pass.ok()) {
          absl::Status reason = rpc::status_from_proto(abort.reason());
          if (reason.ok()) reason = absl::AbortedError("the pass was aborted");
          (*pass)->part().update(
              [&](PassPart::Locked& locked) { locked.state.abort_asked(reason, locked.actions); });
        }
        call.reply(rpc::ServiceReply());
      });
    case kCleanupService:
      return with_message<proto::Cleanup>(call, [&](const proto::Cleanup& cleanup) {
        absl::Status ended =
            contexts_.cleanup(rpc::from_proto(cleanup.context()), cleanup.low(), call.from.incarnation);
        if (!ended.ok()) return call.reply(std::move(ended));
        call.reply(rpc::ServiceReply{.body = {}, .tensors = nullptr, .deferrable = true});
      });
    case kAdmittedService:
      return with_message<proto::Admitted>(call, [&](const proto::Admitted& admitted) {
        if (auto context = contexts_.find(rpc::from_proto(admitted.context())); context.ok()) {
          planter_.admitted(*context, call.from.incarnation);
        }
        call.reply(rpc::ServiceReply());
      });
    default:
      call.reply(absl::InvalidArgumentError(absl::StrCat(
          "unknown autograd service ", call.service, " in a message from worker \"", call.from.name, "\"")));
  }
}

// A RUN runs user code, so it must not run on the thread that received it. If the thread of the root waits
// for gradients it serves the RUN itself, which saves waking another thread.
void MessageServer::run(const rpc::ServiceCall& call, const std::shared_ptr<Pass>& pass, proto::Run message) {
  ArrivedRun arrived{.from = call.from,
                     .run = std::move(message),
                     .defined = {},
                     .sender_devices = call.sender_devices,
                     .fence = call.fence,
                     .reply = call.reply};
  if (call.tensors != nullptr)
    arrived.defined = std::move(static_cast<rpc::TorchTensors&>(*call.tensors).tensors);
  if (pass->part().root().hand_over(arrived)) return;
  // If the agent shuts down, the task is dropped, and the shutdown answers the call.
  agent_.executor()->post_clean(
      [agent = agent_.weak_agent(), pass, arrived = std::move(arrived)]() mutable {
        rpc::AgentGuard guard(agent.lock());
        pass->run(std::move(arrived));
      },
      &run_cost_);
}

}  // namespace gradwire::autograd
