#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/gateway/serving/core.h"
#include "gradwire/proto/gateway.pb.h"

namespace gradwire::gateway {

// The key of ErrorDetail in the trailing metadata.
inline constexpr char kErrorKey[] = "gradwire-error-bin";

// Converts the end of an RPC to gRPC's status. For an error it adds `detail`, with the worker and the limit
// that the status names, to the trailing metadata. Long messages are cut, because gRPC's clients refuse more
// than 8 KiB of metadata.
grpc::Status reply_status(grpc::CallbackServerContext& context, const absl::Status& status,
                          v1::ErrorDetail detail = {});

// Checks the token of an RPC.
absl::Status authenticate(const Core& core, const grpc::CallbackServerContext& context);

// Checks the token of an RPC, and counts it as a call of its client.
absl::StatusOr<Quotas::Permit> enter_call(Core& core, const grpc::CallbackServerContext& context);

// The deadline of an RPC on Clock::system(); that of Options::default_timeout if the client set none.
absl::Time deadline_of(const Core& core, const grpc::CallbackServerContext& context);

}  // namespace gradwire::gateway
