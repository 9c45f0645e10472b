#include "gradwire/rpc/otlp/collector_client.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/client_unary_call.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace gradwire::rpc {
namespace {

using Request = proto::otlp::ExportMetricsServiceRequest;
using Response = proto::otlp::ExportMetricsServiceResponse;

constexpr char kMethod[] = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export";
// An answer has a number and a text.
constexpr int kMostAnswerBytes = 64 << 10;
// Messages of a collector are cut after this many bytes.
constexpr std::size_t kLongestText = 300;
// A shorter value of a header would be found in ordinary words.
constexpr std::size_t kShortestSecret = 4;

std::shared_ptr<grpc::Channel> open_channel(const CollectorOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMostAnswerBytes);
  arguments.SetMaxSendMessageSize(-1);
  // A connection of this exporter alone, which ends with it. Another one knows nothing of failures of this
  // one, and so connects at once.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // The exporter itself decides when it exports again.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  arguments.SetUserAgentPrefix("gradwire-otlp");
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (options.tls) {
    grpc::SslCredentialsOptions ssl;
    ssl.pem_root_certs = options.authorities;
    credentials = grpc::SslCredentials(ssl);
  } else {
    // A proxy would receive what must not leave this host, or what may cross only this network.
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  }
  return grpc::CreateCustomChannel(absl::StrCat("dns:///", options.address), credentials, arguments);
}

}  // namespace

CollectorClient::CollectorClient(const CollectorOptions& options) : options_(options) {}

CollectorClient::~CollectorClient() = default;

CollectorClient::Answer CollectorClient::send(const Request& request, absl::Duration timeout) {
  if (channel_ == nullptr) channel_ = open_channel(options_);
  const auto context = std::make_shared<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() +
                        absl::ToChronoMicroseconds(std::max(timeout, absl::ZeroDuration())));
  for (const auto& [name, value] : options_.headers) context->AddMetadata(name, std::string(value.reveal()));
  {
    MutexLock lock(mutex_);
    if (cancelled_) return {.status = absl::CancelledError("the exporter stops")};
    context_ = context;
  }
  Response response;
  // As the stubs do that gRPC generates for methods of services. It ends at the deadline of the context.
  const grpc::internal::RpcMethod method(kMethod, grpc::internal::RpcMethod::NORMAL_RPC);
  const grpc::Status status =
      grpc::internal::BlockingUnaryCall(channel_.get(), method, context.get(), request, &response);
  {
    MutexLock lock(mutex_);
    context_ = nullptr;
  }
  if (!status.ok()) {
    channel_ = nullptr;
    return {.status = absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                                   presentable(status.error_message()))};
  }
  const proto::otlp::PartialSuccess& partial = response.partial_success();
  return {.rejected = static_cast<uint64_t>(std::max<int64_t>(0, partial.rejected_data_points())),
          .reason = presentable(partial.error_message())};
}

void CollectorClient::cancel() {
  std::shared_ptr<grpc::ClientContext> context;
  {
    MutexLock lock(mutex_);
    cancelled_ = true;
    context = context_;
  }
  if (context != nullptr) context->TryCancel();
}

void CollectorClient::resume() {
  MutexLock lock(mutex_);
  cancelled_ = false;
}

std::string CollectorClient::presentable(absl::string_view text) const {
  std::string shown(text);
  for (const auto& [name, value] : options_.headers) {
    const absl::string_view whole = value.reveal();
    // "Bearer KEY": a collector may repeat the key alone.
    const absl::string_view key = whole.substr(whole.rfind(' ') + 1);
    for (const absl::string_view secret : {whole, key}) {
      if (secret.size() >= kShortestSecret) shown = absl::StrReplaceAll(shown, {{secret, "***"}});
    }
  }
  if (shown.size() > kLongestText) {
    shown.resize(kLongestText);
    shown += "...";
  }
  return shown;
}

}  // namespace gradwire::rpc
