#include "gradwire/gateway/serving/service.h"

#include <string>
#include <vector>

#include "gradwire/gateway/serving/chunked_call.h"
#include "gradwire/gateway/serving/listing.h"
#include "gradwire/gateway/serving/reply.h"
#include "gradwire/gateway/serving/session_stream.h"
#include "gradwire/gateway/serving/stream_call.h"
#include "gradwire/gateway/serving/unary_call.h"

namespace gradwire::gateway {
namespace {

// Ends an RPC that has run on this thread.
grpc::ServerUnaryReactor* finish(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(reply_status(*context, status));
  return reactor;
}

}  // namespace

grpc::ServerUnaryReactor* Service::GetInfo(grpc::CallbackServerContext* context, const v1::GetInfoRequest*,
                                           v1::Info* response) {
  const absl::Status status = authenticate(*core_, *context);
  if (status.ok()) *response = describe(*core_);
  return finish(context, status);
}

grpc::ServerUnaryReactor* Service::ListWorkers(grpc::CallbackServerContext* context,
                                               const v1::ListWorkersRequest*,
                                               v1::ListWorkersResponse* response) {
  const absl::Status status = authenticate(*core_, *context);
  if (status.ok()) *response = list_workers(*core_);
  return finish(context, status);
}

grpc::ServerUnaryReactor* Service::ListFunctions(grpc::CallbackServerContext* context,
                                                 const v1::ListFunctionsRequest* request,
                                                 v1::ListFunctionsResponse* response) {
  // A list counts as a call, so that a client cannot have any number of them.
  absl::StatusOr<Quotas::Permit> permit = enter_call(*core_, *context);
  if (!permit.ok()) return finish(context, permit.status());
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  auto held = std::make_shared<Quotas::Permit>(*std::move(permit));
  list_functions(core_, *request, response, [context, reactor, held](const absl::Status& end) {
    *held = Quotas::Permit();
    reactor->Finish(reply_status(*context, end));
  });
  return reactor;
}

grpc::ServerUnaryReactor* Service::Call(grpc::CallbackServerContext* context, const v1::CallRequest* request,
                                        v1::CallResponse* response) {
  return serve_unary_call(core_, context, request, response);
}

grpc::ServerBidiReactor<v1::UploadPart, v1::DownloadPart>* Service::CallChunked(
    grpc::CallbackServerContext* context) {
  return serve_chunked_call(core_, context);
}

grpc::ServerWriteReactor<v1::DownloadPart>* Service::CallStream(grpc::CallbackServerContext* context,
                                                                const v1::CallRequest* request) {
  return serve_stream_call(core_, context, request);
}

grpc::ServerBidiReactor<v1::SessionRequest, v1::SessionEvent>* Service::OpenSession(
    grpc::CallbackServerContext* context) {
  return serve_session(core_, context);
}

grpc::ServerUnaryReactor* Service::Release(grpc::CallbackServerContext* context,
                                           const v1::ReleaseRequest* request, v1::ReleaseResponse* response) {
  const absl::Status status = authenticate(*core_, *context);
  if (!status.ok()) return finish(context, status);
  absl::StatusOr<SessionUse> session = core_->sessions.use(request->session());
  if (!session.ok()) return finish(context, session.status());
  const std::vector<std::string> handles(request->handles().begin(), request->handles().end());
  response->set_released(static_cast<uint32_t>((*session)->release(handles)));
  return finish(context, absl::OkStatus());
}

}  // namespace gradwire::gateway
