#include "gradwire/gateway/serving/unary_call.h"

#include <memory>
#include <utility>

#include "gradwire/base/log/contained.h"
#include "gradwire/gateway/serving/cancel_action.h"
#include "gradwire/gateway/serving/invocation.h"
#include "gradwire/gateway/serving/reply.h"
#include "gradwire/gateway/serving/trace.h"

namespace gradwire::gateway {
namespace {

class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  UnaryCall(std::shared_ptr<Core> core, grpc::CallbackServerContext& context, v1::CallRequest& request,
            v1::CallResponse& response)
      : context_(context), response_(response) {
    absl::StatusOr<Quotas::Permit> permit = enter_call(*core, context);
    if (!permit.ok()) {
      Finish(reply_status(context, permit.status()));
      return;
    }
    auto input = std::make_unique<Invocation::Input>();
    input->request.Swap(&request);
    input->deadline = deadline_of(*core, context);
    input->trace = trace_of(context);
    input->permit = *std::move(permit);
    // This reactor lives until Finish(), which only this lambda calls.
    auto invocation = std::make_shared<Invocation>(std::move(core), std::move(input),
                                                   [this](Outcome outcome) { finish(outcome); });
    if (cancel_.set([invocation] { invocation->cancel(); })) invocation->start();
  }

  void OnCancel() override {
    run_contained("the cancellation of a call", [this] { cancel_.run(); });
  }
  void OnDone() override { delete this; }

 private:
  void finish(Outcome& outcome) {
    at_boundary(
        "the answer to a call",
        [&] {
          if (outcome.status.ok()) response_.Swap(&outcome.response);
          Finish(reply_status(context_, outcome.status, std::move(outcome.detail)));
        },
        [this](const absl::Status& error) { Finish(reply_status(context_, error)); });
  }

  grpc::CallbackServerContext& context_;
  v1::CallResponse& response_;
  CancelAction cancel_;
};

}  // namespace

grpc::ServerUnaryReactor* serve_unary_call(std::shared_ptr<Core> core, grpc::CallbackServerContext* context,
                                           const v1::CallRequest* request, v1::CallResponse* response) {
  // gRPC does not use the request after this, and destroys it later. Taking it saves a copy of its tensors.
  return new UnaryCall(std::move(core), *context, *const_cast<v1::CallRequest*>(request), *response);
}

}  // namespace gradwire::gateway
