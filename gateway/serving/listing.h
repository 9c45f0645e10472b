#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "gradwire/gateway/serving/core.h"
#include "gradwire/proto/gateway.pb.h"

// The RPCs that describe the gateway and the job.
namespace gradwire::gateway {

v1::Info describe(const Core& core);
v1::ListWorkersResponse list_workers(const Core& core);
// `response` must live until `done` is called, on any thread. InvalidArgument for a malformed page token,
// NotFound for an unknown worker.
void list_functions(std::shared_ptr<Core> core, const v1::ListFunctionsRequest& request,
                    v1::ListFunctionsResponse* response, std::function<void(absl::Status)> done);

}  // namespace gradwire::gateway
