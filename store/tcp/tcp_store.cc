#include "gradwire/store/tcp_store.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/store/memory/limits.h"
#include "gradwire/store/tcp/endpoint.h"
#include "gradwire/store/tcp/store_loop.h"
#include "gradwire/store/tcp/tcp_store_client.h"
#include "gradwire/store/tcp/tcp_store_protocol.h"
#include "gradwire/store/tcp_store_server.h"

namespace gradwire::store {

using Kind = TcpStoreClient::Kind;

TcpStore::TcpStore(Unopened, const std::string& host, int port, const TcpStoreOptions& options)
    : Store(options.timeout), host_(host), port_(port) {}

TcpStore::TcpStore(const std::string& host, int port, TcpStoreOptions options)
    : TcpStore(Unopened{}, host, port, options) {
  throw_if_error(start(options));
}

TcpStore::~TcpStore() = default;

absl::StatusOr<std::shared_ptr<TcpStore>> TcpStore::open(const std::string& host, int port,
                                                         TcpStoreOptions options) {
  std::shared_ptr<TcpStore> store(new TcpStore(Unopened{}, host, port, options));
  GRADWIRE_RETURN_IF_ERROR(store->start(options));
  return store;
}

absl::Status TcpStore::start(const TcpStoreOptions& options) {
  GRADWIRE_RETURN_IF_ERROR(check_endpoint({host_, port_}, options.is_master ? 0 : 1));
  if (options.world_size.has_value() && *options.world_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(description(), ": world size must be positive, got ", *options.world_size));
  }
  Endpoint target{host_, port_};
  if (options.is_master) {
    GRADWIRE_ASSIGN_OR_RETURN(server_, TcpStoreServer::start({.host = host_, .port = port_}));
    port_ = server_->port();
    // The master connects to itself by a loopback address: its own name may not be reachable from inside the
    // machine (for example behind address translation).
    target = {is_loopback(host_) ? host_ : "127.0.0.1", port_};
  }
  // The master's own client shares the server's thread.
  std::shared_ptr<StoreLoop> loop;
  if (server_ != nullptr) {
    loop = server_->loop();
  } else {
    GRADWIRE_ASSIGN_OR_RETURN(loop, StoreLoop::create("store-client"));
  }
  client_ = std::make_unique<TcpStoreClient>(
      TcpStoreClient::Options{
          .endpoint = target, .name = description(), .world_size = options.world_size.value_or(0)},
      std::move(loop), clock());
  const absl::Time deadline = clock().now() + options.timeout;
  GRADWIRE_RETURN_IF_ERROR(client_->connect(deadline));
  if (!options.is_master || !options.wait_for_workers || !options.world_size.has_value())
    return absl::OkStatus();
  return client_->wait_for_workers(deadline);
}

std::string TcpStore::description() const { return absl::StrCat("TcpStore at ", to_string({host_, port_})); }

absl::Status TcpStore::do_set(absl::string_view key, absl::string_view value, absl::Time deadline) {
  proto::Request request;
  proto::SetRequest& set = *request.mutable_set();
  set.set_key(key.data(), key.size());
  set.set_value(value.data(), value.size());
  // proto/store.proto says which calls may be repeated after their answer was lost: a Set may, the other
  // changes may not.
  return client_->call(request, deadline, Kind::kRepeatable).status();
}

absl::StatusOr<int64_t> TcpStore::do_add(absl::string_view key, int64_t n, absl::Time deadline) {
  proto::Request request;
  proto::AddRequest& add = *request.mutable_add();
  add.set_key(key.data(), key.size());
  add.set_n(n);
  GRADWIRE_ASSIGN_OR_RETURN(const TcpStoreLink::Answer answer, client_->call(request, deadline, Kind::kOnce));
  return answer->add().sum();
}

absl::StatusOr<std::string> TcpStore::do_compare_set(absl::string_view key, absl::string_view expected,
                                                     absl::string_view desired, absl::Time deadline) {
  proto::Request request;
  proto::CompareSetRequest& compare_set = *request.mutable_compare_set();
  compare_set.set_key(key.data(), key.size());
  compare_set.set_expected(expected.data(), expected.size());
  compare_set.set_desired(desired.data(), desired.size());
  GRADWIRE_ASSIGN_OR_RETURN(const TcpStoreLink::Answer answer, client_->call(request, deadline, Kind::kOnce));
  return answer->compare_set().current();
}

absl::StatusOr<bool> TcpStore::do_delete_key(absl::string_view key, absl::Time deadline) {
  proto::Request request;
  request.mutable_delete_key()->set_key(key.data(), key.size());
  GRADWIRE_ASSIGN_OR_RETURN(const TcpStoreLink::Answer answer, client_->call(request, deadline, Kind::kOnce));
  return answer->delete_key().existed();
}

absl::StatusOr<int64_t> TcpStore::do_num_keys(absl::string_view prefix, absl::Time deadline) {
  proto::Request request;
  request.mutable_num_keys()->set_prefix(prefix.data(), prefix.size());
  GRADWIRE_ASSIGN_OR_RETURN(const TcpStoreLink::Answer answer,
                            client_->call(request, deadline, Kind::kRepeatable));
  return answer->num_keys().count();
}

absl::StatusOr<std::vector<std::string>> TcpStore::do_wait(const std::vector<std::string>& keys,
                                                           absl::Time deadline) {
  std::size_t bytes = 0;
  for (const std::string& key : keys) bytes += key.size();
  // Such a list does not fit into one message.
  if (bytes > kMaxValueBytes) {
    return absl::ResourceExhaustedError(absl::StrCat(description(), ": a wait for keys of ", bytes,
                                                     " bytes is over the limit of ", kMaxValueBytes));
  }
  proto::Request request;
  pack_keys(keys, *request.mutable_wait()->mutable_keys());
  GRADWIRE_ASSIGN_OR_RETURN(const TcpStoreLink::Answer answer,
                            client_->call(request, deadline, Kind::kWaiting));
  std::optional<std::vector<std::string>> missing = unpack_keys(answer->wait().missing());
  if (!missing.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat(description(), ": the server at this address is not a Gradwire store"));
  }
  return *std::move(missing);
}

absl::StatusOr<std::optional<std::string>> TcpStore::do_watch(absl::string_view key,
                                                              std::optional<absl::string_view> last_value,
                                                              absl::Time deadline) {
  proto::Request request;
  proto::WatchRequest& watch = *request.mutable_watch();
  watch.set_key(key.data(), key.size());
  if (last_value.has_value()) watch.set_last_value(last_value->data(), last_value->size());
  GRADWIRE_ASSIGN_OR_RETURN(const TcpStoreLink::Answer answer,
                            client_->call(request, deadline, Kind::kWaiting));
  if (!answer->watch().has_value()) return std::optional<std::string>();
  return std::optional<std::string>(answer->watch().value());
}

}  // namespace gradwire::store
