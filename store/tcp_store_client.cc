#include "store/tcp_store_client.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/error.h"
#include "base/random_id.h"
#include "store/limits.h"
#include "store/tcp_store_service.h"

namespace gradwire::store {
namespace {

// How soon a call that need not wait may end when its own deadline has passed or is short.
constexpr absl::Duration kLeastCallTime = absl::Seconds(1);

std::string target(const Endpoint& endpoint) {
  // As the server reads it; and a name that needs no resolver is not asked of one, which may ask the network.
  if (absl::EqualsIgnoreCase(endpoint.host, "localhost"))
    return absl::StrCat("ipv4:127.0.0.1:", endpoint.port);
  if (is_ipv4(endpoint.host)) return absl::StrCat("ipv4:", to_string(endpoint));
  // In a URI a zone's % is written %25.
  if (is_ipv6(endpoint.host))
    return absl::StrCat("ipv6:", absl::StrReplaceAll(to_string(endpoint), {{"%", "%25"}}));
  return absl::StrCat("dns:///", to_string(endpoint));
}

std::shared_ptr<grpc::Channel> make_channel(const Endpoint& endpoint) {
  grpc::ChannelArguments arguments;
  // Clients of one process, and a process forked from it, must not end or slow one another's connections.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // A proxy that the environment names for the web has nothing to do with a job's own processes.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  // The server is often started a moment after its clients.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1'000);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5'000);  // In truth how long one attempt may take.
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 500);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  return grpc::CreateCustomChannel(target(endpoint), grpc::InsecureChannelCredentials(), arguments);
}

// gRPC's deadlines are of the wall clock.
std::chrono::system_clock::time_point wall_time_in(absl::Duration left) {
  return std::chrono::system_clock::now() +
         absl::ToChronoMicroseconds(std::clamp(left, absl::ZeroDuration(), absl::Hours(24 * 365)));
}

absl::Status from_grpc(const grpc::Status& status, const std::string& name) {
  if (status.ok()) return absl::OkStatus();
  absl::StatusCode code = static_cast<absl::StatusCode>(status.error_code());
  std::string message = status.error_message();
  switch (status.error_code()) {
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      message = "the server did not answer in time";
      break;
    case grpc::StatusCode::CANCELLED:  // The connection or the server went while it was answering.
    case grpc::StatusCode::INTERNAL:
    case grpc::StatusCode::UNKNOWN:
      code = absl::StatusCode::kUnavailable;
      break;
    case grpc::StatusCode::UNIMPLEMENTED:
      code = absl::StatusCode::kFailedPrecondition;
      message = "what answers there is no Gradwire store";
      break;
    default:
      break;
  }
  return absl::Status(code, absl::StrCat(name, ": ", message));
}

}  // namespace

TcpStoreClient::TcpStoreClient(const Endpoint& endpoint, std::string name, Clock& clock)
    : clock_(clock),
      name_(std::move(name)),
      id_(random_id()),
      channel_(make_channel(endpoint)),
      stub_(proto::TcpStore::NewStub(channel_)) {}

int64_t TcpStoreClient::to_timeout_us(absl::Duration left) {
  if (left == absl::InfiniteDuration()) return -1;
  return std::max<int64_t>(0, absl::ToInt64Microseconds(left));
}

absl::Status TcpStoreClient::unreachable(absl::Duration waited) {
  // A call that does not wait for the connection tells why there is none.
  grpc::ClientContext context;
  context.set_deadline(wall_time_in(absl::Milliseconds(100)));
  proto::HelloRequest request;
  proto::HelloResponse response;
  const grpc::Status why = stub_->Hello(&context, request, &response);
  return absl::UnavailableError(absl::StrCat(
      name_, " cannot be reached: tried for ",
      absl::FormatDuration(absl::Trunc(waited, absl::Milliseconds(1))),
      why.error_code() == grpc::StatusCode::UNAVAILABLE ? absl::StrCat(" (", why.error_message(), ")") : "",
      server_ == 0 ? "; has its server been started, and is this its address?" : "; its server is gone"));
}

absl::Status TcpStoreClient::connect(absl::Time deadline) {
  const absl::Time start = clock_.now();
  if (channel_->GetState(/*try_to_connect=*/true) == GRPC_CHANNEL_READY) return absl::OkStatus();
  absl::Duration patience = deadline - start;
  if (server_ != 0) patience = std::clamp(patience, kLeastCallTime, kReconnectFor);
  if (channel_->WaitForConnected(wall_time_in(patience))) return absl::OkStatus();
  return unreachable(clock_.now() - start);
}

absl::Status TcpStoreClient::run(absl::Time deadline, bool may_repeat, absl::Duration answer_time,
                                 Attempt attempt) {
  absl::Time give_up = absl::InfiniteFuture();
  absl::Duration pause = absl::Milliseconds(5);
  while (true) {
    GRADWIRE_RETURN_IF_ERROR(connect(std::min(deadline, give_up)));
    const absl::Duration left = deadline - clock_.now();
    grpc::ClientContext context;
    context.set_deadline(wall_time_in(std::max(left, kLeastCallTime) + answer_time));
    const grpc::Status status = attempt(context, left);
    const absl::Status result = from_grpc(status, name_);
    const bool stopped = status.error_details() == kStoreStopped;
    if (!absl::IsUnavailable(result) || !may_repeat || stopped) return result;
    const absl::Time now = clock_.now();
    give_up = std::min(give_up, now + kReconnectFor);
    if (now + pause >= std::min(deadline, give_up)) return result;
    std::this_thread::sleep_for(absl::ToChronoMicroseconds(pause));
    pause = std::min(pause * 2, absl::Milliseconds(500));
  }
}

absl::Status TcpStoreClient::hello(int world_size, bool wait_for_workers, absl::Time deadline) {
  const absl::Time start = clock_.now();
  proto::HelloRequest request;
  request.set_client(id_);
  request.set_world_size(world_size);
  request.set_wait_for_workers(wait_for_workers);
  proto::HelloResponse response;
  GRADWIRE_RETURN_IF_ERROR(run(deadline, /*may_repeat=*/true,
                               wait_for_workers ? kAnswerTime : absl::ZeroDuration(),
                               [&](grpc::ClientContext& context, absl::Duration left) {
                                 request.set_timeout_us(to_timeout_us(left));
                                 return stub_->Hello(&context, request, &response);
                               }));
  server_ = response.server();
  if (!wait_for_workers || response.workers() >= world_size) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat(
      "waited ", absl::FormatDuration(absl::Trunc(clock_.now() - start, absl::Milliseconds(1))), " in the ",
      name_, " for ", world_size, " workers, this one included: ", response.workers(), " came"));
}

}  // namespace gradwire::store
