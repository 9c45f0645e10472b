#include "gradwire/store/tcp_store.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/fork.h"
#include "gradwire/base/log/log.h"
#include "gradwire/security/setup/make_credentials.h"
#include "gradwire/store/c10d/c10d_client.h"
#include "gradwire/store/calls/endpoint.h"
#include "gradwire/store/calls/key_list.h"
#include "gradwire/store/calls/store_caller.h"
#include "gradwire/store/interface/limits.h"
#include "gradwire/store/tcp/store_loop.h"
#include "gradwire/store/tcp/tcp_store_client.h"
#include "gradwire/store/tcp_store_server.h"

namespace gradwire::store {

using Kind = StoreCaller::Kind;

namespace {

absl::StatusOr<std::vector<std::string>> unpack(const proto::KeyList& list, std::size_t max_keys,
                                                const std::string& name) {
  std::optional<std::vector<std::string>> keys = unpack_keys(list, max_keys);
  if (keys.has_value()) return *std::move(keys);
  return absl::FailedPreconditionError(
      absl::StrCat(name, ": the server at this address is not a Gradwire store"));
}

// A longer list does not fit into one message.
absl::Status check_fits(const std::vector<std::string>& keys, const std::string& name) {
  std::size_t bytes = 0;
  for (const std::string& key : keys) bytes += key.size();
  if (bytes <= kMaxValueBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(name, ": a call for keys of ", bytes, " bytes is over the limit of ", kMaxValueBytes));
}

// As for a server of Gradwire: without credentials it must be on this host, and belong to an allowed user.
C10dTarget torch_target(Endpoint endpoint, const security::Credentials& credentials,
                        const std::vector<uid_t>& allowed_users) {
  C10dTarget target{.endpoint = std::move(endpoint), .users = allowed_users};
  if (credentials.may_leave_host()) target.users.reset();
  return target;
}

}  // namespace

TcpStore::TcpStore(Unopened, const std::string& host, int port, const TcpStoreOptions& options)
    : Store(options.timeout), host_(host), port_(port) {}

TcpStore::TcpStore(const std::string& host, int port, TcpStoreOptions options)
    : TcpStore(Unopened{}, host, port, options) {
  throw_if_error(start(options));
}

// In a forked child the connections and the server are those of the parent.
TcpStore::~TcpStore() {
  if (!in_own_process()) leak_after_fork(client_, server_);
}

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
  if (credentials_ == nullptr) {
    GRADWIRE_ASSIGN_OR_RETURN(credentials_, security::make_credentials(options.security));
  }
  allowed_users_ = options.security.allowed_users;
  Endpoint target{host_, port_};
  if (options.is_master) {
    GRADWIRE_ASSIGN_OR_RETURN(server_, TcpStoreServer::start({.host = host_,
                                                              .port = port_,
                                                              .allow_unauthenticated_pytorch =
                                                                  options.allow_unauthenticated_pytorch,
                                                              .security = options.security,
                                                              .credentials = credentials_}));
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
  TcpStoreClient::Options client_options{.endpoint = target,
                                         .name = description(),
                                         .world_size = options.world_size.value_or(0),
                                         .credentials = credentials_,
                                         .allowed_users = options.security.allowed_users};
  std::optional<C10dSocket> to_torch;
  if (!options.is_master) {
    client_options.is_other_server = [this, &to_torch, &clock = clock()](absl::Duration timeout) {
      to_torch = C10dClient::find_server(torch_target({host_, port_}, *credentials_, allowed_users_), clock,
                                         clock.now() + timeout);
      return to_torch.has_value();
    };
  }
  const absl::Time deadline = clock().now() + options.timeout;
  auto client = std::make_unique<TcpStoreClient>(std::move(client_options), std::move(loop), clock());
  const absl::Status connected = client->connect(deadline);
  if (absl::IsFailedPrecondition(connected) && connected.message() == TcpStoreClient::kOtherServer) {
    return start_at_torch(*std::move(to_torch), options, deadline);
  }
  GRADWIRE_RETURN_IF_ERROR(connected);
  TcpStoreClient& workers = *client;
  client_ = std::move(client);
  if (!options.is_master || !options.wait_for_workers || !options.world_size.has_value())
    return absl::OkStatus();
  return workers.wait_for_workers(deadline);
}

absl::Status TcpStore::start_at_torch(C10dSocket socket, const TcpStoreOptions& options,
                                      absl::Time deadline) {
  if (credentials_->kind() != security::Credentials::Kind::kNone &&
      credentials_->kind() != security::Credentials::Kind::kInsecure) {
    return absl::FailedPreconditionError(
        absl::StrCat(description(),
                     ": a program of PyTorch serves it, which cannot prove that it belongs to the job; "
                     "serve the store by Gradwire, or use no token and no certificate for this store"));
  }
  log(LogLevel::kInfo, "the ", description(), " is served by PyTorch");
  auto client = std::make_unique<C10dClient>(
      C10dClient::Options{.target = torch_target({host_, port_}, *credentials_, allowed_users_),
                          .name = description()},
      clock());
  client->keep(std::move(socket));
  served_by_torch_ = true;
  if (options.world_size.has_value()) GRADWIRE_RETURN_IF_ERROR(client->join(deadline));
  client_ = std::move(client);
  return absl::OkStatus();
}

std::string TcpStore::description() const { return absl::StrCat("TcpStore at ", to_string({host_, port_})); }

absl::Status TcpStore::do_set(absl::Span<const Entry> entries, absl::Time deadline) {
  proto::Request request;
  if (entries.size() == 1) {
    const auto& [key, value] = entries[0];
    proto::SetRequest& set = *request.mutable_set();
    set.set_key(key.data(), key.size());
    set.set_value(value.data(), value.size());
  } else {
    proto::MultiSetRequest& set = *request.mutable_multi_set();
    for (const auto& [key, value] : entries) {
      pack_key(key, *set.mutable_keys());
      pack_key(value, *set.mutable_values());
    }
  }
  // proto/store.proto says which calls may be repeated after their answer was lost: a Set may, the other
  // changes may not.
  return client_->call(request, deadline, Kind::kRepeatable).status();
}

absl::Status TcpStore::do_append(absl::string_view key, absl::string_view value, absl::Time deadline) {
  proto::Request request;
  proto::AppendRequest& append = *request.mutable_append();
  append.set_key(key.data(), key.size());
  append.set_value(value.data(), value.size());
  return client_->call(request, deadline, Kind::kOnce).status();
}

absl::StatusOr<int64_t> TcpStore::do_add(absl::string_view key, int64_t n, absl::Time deadline) {
  proto::Request request;
  proto::AddRequest& add = *request.mutable_add();
  add.set_key(key.data(), key.size());
  add.set_n(n);
  GRADWIRE_ASSIGN_OR_RETURN(const StoreCaller::Answer answer, client_->call(request, deadline, Kind::kOnce));
  return answer->add().sum();
}

absl::StatusOr<std::string> TcpStore::do_compare_set(absl::string_view key, absl::string_view expected,
                                                     absl::string_view desired, absl::Time deadline) {
  proto::Request request;
  proto::CompareSetRequest& compare_set = *request.mutable_compare_set();
  compare_set.set_key(key.data(), key.size());
  compare_set.set_expected(expected.data(), expected.size());
  compare_set.set_desired(desired.data(), desired.size());
  GRADWIRE_ASSIGN_OR_RETURN(const StoreCaller::Answer answer, client_->call(request, deadline, Kind::kOnce));
  return answer->compare_set().current();
}

absl::StatusOr<bool> TcpStore::do_delete_key(absl::string_view key, absl::Time deadline) {
  proto::Request request;
  request.mutable_delete_key()->set_key(key.data(), key.size());
  GRADWIRE_ASSIGN_OR_RETURN(const StoreCaller::Answer answer, client_->call(request, deadline, Kind::kOnce));
  return answer->delete_key().existed();
}

absl::StatusOr<int64_t> TcpStore::do_num_keys(absl::string_view prefix, absl::Time deadline) {
  proto::Request request;
  request.mutable_num_keys()->set_prefix(prefix.data(), prefix.size());
  GRADWIRE_ASSIGN_OR_RETURN(const StoreCaller::Answer answer,
                            client_->call(request, deadline, Kind::kRepeatable));
  return answer->num_keys().count();
}

absl::StatusOr<std::vector<std::string>> TcpStore::do_list_keys(absl::string_view prefix,
                                                                absl::Time deadline) {
  proto::Request request;
  request.mutable_list_keys()->set_prefix(prefix.data(), prefix.size());
  GRADWIRE_ASSIGN_OR_RETURN(const StoreCaller::Answer answer,
                            client_->call(request, deadline, Kind::kRepeatable));
  return unpack(answer->list_keys().keys(), kMaxListedKeys, description());
}

absl::StatusOr<bool> TcpStore::do_check(const std::vector<std::string>& keys, absl::Time deadline) {
  GRADWIRE_RETURN_IF_ERROR(check_fits(keys, description()));
  proto::Request request;
  pack_keys(keys, *request.mutable_check()->mutable_keys());
  GRADWIRE_ASSIGN_OR_RETURN(const StoreCaller::Answer answer,
                            client_->call(request, deadline, Kind::kRepeatable));
  return answer->check().all_exist();
}

absl::StatusOr<std::vector<std::string>> TcpStore::do_wait(const std::vector<std::string>& keys,
                                                           absl::Time deadline) {
  GRADWIRE_RETURN_IF_ERROR(check_fits(keys, description()));
  proto::Request request;
  pack_keys(keys, *request.mutable_wait()->mutable_keys());
  GRADWIRE_ASSIGN_OR_RETURN(const StoreCaller::Answer answer,
                            client_->call(request, deadline, Kind::kWaiting));
  return unpack(answer->wait().missing(), keys.size(), description());
}

absl::StatusOr<Store::Values> TcpStore::do_multi_get(const std::vector<std::string>& keys,
                                                     absl::Time deadline) {
  GRADWIRE_RETURN_IF_ERROR(check_fits(keys, description()));
  proto::Request request;
  request.mutable_wait()->set_with_values(true);
  pack_keys(keys, *request.mutable_wait()->mutable_keys());
  GRADWIRE_ASSIGN_OR_RETURN(const StoreCaller::Answer answer,
                            client_->call(request, deadline, Kind::kWaiting));
  Values values;
  GRADWIRE_ASSIGN_OR_RETURN(values.missing, unpack(answer->wait().missing(), keys.size(), description()));
  GRADWIRE_ASSIGN_OR_RETURN(values.values, unpack(answer->wait().values(), keys.size(), description()));
  if (values.missing.empty() && values.values.size() != keys.size()) {
    return absl::FailedPreconditionError(absl::StrCat(description(), ": the server returned ",
                                                      values.values.size(), " values for ", keys.size(),
                                                      " keys: it is another version of Gradwire"));
  }
  return values;
}

absl::StatusOr<std::optional<std::string>> TcpStore::do_watch(absl::string_view key,
                                                              std::optional<absl::string_view> last_value,
                                                              absl::Time deadline) {
  proto::Request request;
  proto::WatchRequest& watch = *request.mutable_watch();
  watch.set_key(key.data(), key.size());
  if (last_value.has_value()) watch.set_last_value(last_value->data(), last_value->size());
  GRADWIRE_ASSIGN_OR_RETURN(const StoreCaller::Answer answer,
                            client_->call(request, deadline, Kind::kWaiting));
  if (!answer->watch().has_value()) return std::optional<std::string>();
  return std::optional<std::string>(answer->watch().value());
}

absl::Status TcpStore::do_queue_push(absl::string_view queue, absl::string_view value, absl::Time deadline) {
  proto::Request request;
  proto::QueuePushRequest& push = *request.mutable_queue_push();
  push.set_queue(queue.data(), queue.size());
  push.set_value(value.data(), value.size());
  return client_->call(request, deadline, Kind::kOnce).status();
}

absl::StatusOr<std::optional<std::string>> TcpStore::do_queue_pop(absl::string_view queue,
                                                                  absl::Time deadline) {
  proto::Request request;
  request.mutable_queue_pop()->set_queue(queue.data(), queue.size());
  GRADWIRE_ASSIGN_OR_RETURN(const StoreCaller::Answer answer,
                            client_->call(request, deadline, Kind::kWaitingOnce));
  if (!answer->queue_pop().has_value()) return std::optional<std::string>();
  return std::optional<std::string>(answer->queue_pop().value());
}

absl::StatusOr<int64_t> TcpStore::do_queue_len(absl::string_view queue, absl::Time deadline) {
  proto::Request request;
  request.mutable_queue_len()->set_queue(queue.data(), queue.size());
  GRADWIRE_ASSIGN_OR_RETURN(const StoreCaller::Answer answer,
                            client_->call(request, deadline, Kind::kRepeatable));
  return answer->queue_len().length();
}

absl::StatusOr<std::shared_ptr<Store>> TcpStore::do_clone(absl::Time deadline) {
  TcpStoreOptions options;
  options.timeout = deadline - clock().now();
  options.security.allowed_users = allowed_users_;
  if (!served_by_torch_) {
    const std::string host = is_master() && !is_loopback(host_) ? "127.0.0.1" : host_;
    std::shared_ptr<TcpStore> store(new TcpStore(Unopened{}, host, port_, options));
    store->credentials_ = credentials_;
    GRADWIRE_RETURN_IF_ERROR(store->start(options));
    return std::shared_ptr<Store>(std::move(store));
  }
  // The kind of the server is known, so one connection is enough.
  std::optional<C10dSocket> socket =
      C10dClient::find_server(torch_target({host_, port_}, *credentials_, allowed_users_), clock(), deadline);
  if (!socket.has_value()) {
    return absl::UnavailableError(
        absl::StrCat(description(), ": cannot clone the store: PyTorch's server cannot be reached"));
  }
  std::shared_ptr<TcpStore> store(new TcpStore(Unopened{}, host_, port_, options));
  store->credentials_ = credentials_;
  store->allowed_users_ = allowed_users_;
  GRADWIRE_RETURN_IF_ERROR(store->start_at_torch(*std::move(socket), options, deadline));
  return std::shared_ptr<Store>(std::move(store));
}

}  // namespace gradwire::store
