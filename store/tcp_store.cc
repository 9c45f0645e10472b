#include "store/tcp_store.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "store/endpoint.h"
#include "store/tcp_store_client.h"
#include "store/tcp_store_server.h"

namespace gradwire::store {

using Stub = proto::TcpStore::Stub;

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
    return absl::InvalidArgumentError(absl::StrCat("a world size of ", *options.world_size, " for the ",
                                                   description(), " is not positive"));
  }
  Endpoint dialled{host_, port_};
  if (options.is_master) {
    GRADWIRE_ASSIGN_OR_RETURN(server_, TcpStoreServer::start({.host = host_, .port = port_}));
    port_ = server_->port();
    // Its own name may not lead to this machine from inside (a translated address), so the master dials
    // itself here.
    dialled = {is_loopback(host_) ? host_ : "127.0.0.1", port_};
  }
  client_ = std::make_unique<TcpStoreClient>(dialled, description(), clock());
  const absl::Time deadline =
      options.timeout == absl::InfiniteDuration() ? absl::InfiniteFuture() : clock().now() + options.timeout;
  return client_->hello(options.world_size.value_or(0),
                        options.is_master && options.wait_for_workers && options.world_size.has_value(),
                        deadline);
}

std::string TcpStore::description() const { return absl::StrCat("TcpStore at ", to_string({host_, port_})); }

absl::Status TcpStore::do_set(absl::string_view key, absl::string_view value, absl::Time deadline) {
  proto::SetRequest request;
  proto::SetResponse response;
  request.set_key(std::string(key));
  request.set_value(std::string(value));
  return client_->call(&Stub::Set, request, response, deadline, /*may_repeat=*/true);
}

absl::StatusOr<int64_t> TcpStore::do_add(absl::string_view key, int64_t n, absl::Time deadline) {
  proto::AddRequest request;
  proto::AddResponse response;
  request.set_key(std::string(key));
  request.set_n(n);
  GRADWIRE_RETURN_IF_ERROR(client_->call(&Stub::Add, request, response, deadline, /*may_repeat=*/false));
  return response.sum();
}

absl::StatusOr<std::string> TcpStore::do_compare_set(absl::string_view key, absl::string_view expected,
                                                     absl::string_view desired, absl::Time deadline) {
  proto::CompareSetRequest request;
  proto::CompareSetResponse response;
  request.set_key(std::string(key));
  request.set_expected(std::string(expected));
  request.set_desired(std::string(desired));
  GRADWIRE_RETURN_IF_ERROR(
      client_->call(&Stub::CompareSet, request, response, deadline, /*may_repeat=*/false));
  return std::move(*response.mutable_current());
}

absl::StatusOr<bool> TcpStore::do_delete_key(absl::string_view key, absl::Time deadline) {
  proto::DeleteRequest request;
  proto::DeleteResponse response;
  request.set_key(std::string(key));
  GRADWIRE_RETURN_IF_ERROR(client_->call(&Stub::Delete, request, response, deadline, /*may_repeat=*/false));
  return response.existed();
}

absl::StatusOr<int64_t> TcpStore::do_num_keys(absl::string_view prefix, absl::Time deadline) {
  proto::NumKeysRequest request;
  proto::NumKeysResponse response;
  request.set_prefix(std::string(prefix));
  GRADWIRE_RETURN_IF_ERROR(client_->call(&Stub::NumKeys, request, response, deadline, /*may_repeat=*/true));
  return response.count();
}

absl::StatusOr<std::vector<std::string>> TcpStore::do_wait(const std::vector<std::string>& keys,
                                                           absl::Time deadline) {
  proto::WaitRequest request;
  proto::WaitResponse response;
  for (const std::string& key : keys) request.add_keys(key);
  GRADWIRE_RETURN_IF_ERROR(client_->call_waiting(&Stub::Wait, request, response, deadline));
  return std::vector<std::string>(response.missing().begin(), response.missing().end());
}

absl::StatusOr<std::optional<std::string>> TcpStore::do_watch(absl::string_view key,
                                                              std::optional<absl::string_view> last_value,
                                                              absl::Time deadline) {
  proto::WatchRequest request;
  proto::WatchResponse response;
  request.set_key(std::string(key));
  if (last_value.has_value()) request.set_last_value(std::string(*last_value));
  GRADWIRE_RETURN_IF_ERROR(client_->call_waiting(&Stub::Watch, request, response, deadline));
  if (!response.has_value()) return std::optional<std::string>();
  return std::optional<std::string>(std::move(*response.mutable_value()));
}

}  // namespace gradwire::store
