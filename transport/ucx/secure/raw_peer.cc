#include "gradwire/transport/ucx/secure/raw_peer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/security/token/record.h"
#include "gradwire/transport/recording_listener.h"
#include "gradwire/transport/tcp/socket/address.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

std::string text_of(const sockaddr_storage& storage) {
  return to_string(SocketAddress{storage, sizeof(sockaddr_in)});
}

ucs_status_t on_message(void* received, const void* head, std::size_t head_bytes, void* data,
                        std::size_t data_bytes, const ucp_am_recv_param_t* param) {
  const auto parsed = UcxHead::parse({static_cast<const char*>(head), head_bytes});
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  RawPeer::Received message{parsed.value_or(UcxHead()), ""};
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0) {
    message.data.assign(static_cast<const char*>(data), data_bytes);
  }
  static_cast<std::deque<RawPeer::Received>*>(received)->push_back(std::move(message));
  return UCS_OK;
}

void on_error(void* closed, ucp_ep_h, ucs_status_t) { *static_cast<bool*>(closed) = true; }

void on_request(ucp_conn_request_h request, void* slot) { *static_cast<ucp_conn_request_h*>(slot) = request; }

void on_sent(void* request, ucs_status_t, void* unsent) {
  ucp_request_free(request);
  --*static_cast<int*>(unsent);
}

}  // namespace

RawPeer::RawPeer() {
  absl::StatusOr<std::unique_ptr<UcxWorker>> worker = UcxWorker::create("tcp");
  EXPECT_TRUE(worker.ok()) << worker.status();
  worker_ = *std::move(worker);
  ucp_am_handler_param_t handler = {};
  handler.field_mask =
      UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.cb = &on_message;
  handler.arg = &received_;
  EXPECT_EQ(ucp_worker_set_am_recv_handler(worker_->get(), &handler), UCS_OK);
}

RawPeer::~RawPeer() {
  if (endpoint_ != nullptr) {
    ucp_request_param_t param = {};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    const ucs_status_ptr_t request = ucp_ep_close_nbx(endpoint_, &param);
    if (UCS_PTR_IS_PTR(request)) {
      run_until([&] { return ucp_request_check_status(request) != UCS_INPROGRESS; });
      ucp_request_free(request);
    }
  }
  if (request_ != nullptr) ucp_listener_reject(listener_, request_);
  if (listener_ != nullptr) ucp_listener_destroy(listener_);
}

std::unique_ptr<RawPeer> RawPeer::connect(const std::string& address) {
  std::unique_ptr<RawPeer> peer(new RawPeer);
  absl::StatusOr<std::vector<SocketAddress>> addresses = resolve_addresses(address);
  EXPECT_TRUE(addresses.ok()) << addresses.status();
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR |
                      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr = {addresses->front().get(), addresses->front().length};
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {&on_error, &peer->closed_};
  EXPECT_EQ(ucp_ep_create(peer->worker_->get(), &params, &peer->endpoint_), UCS_OK);
  return peer;
}

std::unique_ptr<RawPeer> RawPeer::listen() {
  std::unique_ptr<RawPeer> peer(new RawPeer);
  sockaddr_in any = {};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ucp_listener_params_t params = {};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr = {reinterpret_cast<const sockaddr*>(&any), sizeof(any)};
  params.conn_handler = {&on_request, &peer->request_};
  EXPECT_EQ(ucp_listener_create(peer->worker_->get(), &params, &peer->listener_), UCS_OK);
  return peer;
}

std::string RawPeer::address() const {
  ucp_listener_attr_t attributes = {};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  EXPECT_EQ(ucp_listener_query(listener_, &attributes), UCS_OK);
  return text_of(attributes.sockaddr);
}

void RawPeer::accept() {
  run_until([this] { return request_ != nullptr; });
  ASSERT_NE(request_, nullptr);
  ucp_ep_params_t params = {};
  params.field_mask =
      UCP_EP_PARAM_FIELD_CONN_REQUEST | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.conn_request = std::exchange(request_, nullptr);
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {&on_error, &closed_};
  EXPECT_EQ(ucp_ep_create(worker_->get(), &params, &endpoint_), UCS_OK);
  accepted_ = true;
}

security::MessageChannel RawPeer::channel() const {
  ucp_ep_attr_t attributes = {};
  attributes.field_mask = UCP_EP_ATTR_FIELD_LOCAL_SOCKADDR | UCP_EP_ATTR_FIELD_REMOTE_SOCKADDR;
  EXPECT_EQ(ucp_ep_query(endpoint_, &attributes), UCS_OK);
  return {.accepted = accepted_,
          .own_address = text_of(attributes.local_sockaddr),
          .peer_address = text_of(attributes.remote_sockaddr)};
}

void RawPeer::send(const UcxHead& head, absl::string_view data, bool rendezvous) {
  const auto bytes = head.encode();
  send({bytes.data(), bytes.size()}, data, rendezvous);
}

void RawPeer::send(absl::string_view head, absl::string_view data, bool rendezvous) {
  const std::string& kept_head = sent_.emplace_back(head);
  const std::string& kept_data = sent_.emplace_back(data);
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.cb.send = &on_sent;
  param.user_data = &unsent_;
  param.flags = UCP_AM_SEND_FLAG_REPLY | (rendezvous ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER);
  const ucs_status_ptr_t request = ucp_am_send_nbx(endpoint_, 0, kept_head.data(), kept_head.size(),
                                                   kept_data.data(), kept_data.size(), &param);
  if (UCS_PTR_IS_PTR(request)) ++unsent_;
}

void RawPeer::send_record(absl::string_view record) {
  send(UcxHead{UcxHead::Kind::kHandshake, 0, record.size(), 0}, record);
}

void RawPeer::flush() {
  run_until([this] { return unsent_ == 0; });
  EXPECT_EQ(unsent_, 0);
}

std::optional<RawPeer::Received> RawPeer::receive() {
  run_until([this] { return closed_ || !received_.empty(); });
  if (received_.empty()) return std::nullopt;
  Received first = std::move(received_.front());
  received_.pop_front();
  return first;
}

std::string RawPeer::receive_refusal() {
  const std::optional<Received> message = receive();
  if (!message.has_value()) return "(closed)";
  if (message->head.kind != UcxHead::Kind::kHandshake) return "(no message of the handshake)";
  security::RecordParser parser;
  if (!parser.add(message->data).ok() || !parser.complete()) return "(malformed)";
  const security::Record record = parser.take();
  return record.kind == security::Record::Kind::kRefusal ? record.sentence() : "(another record)";
}

bool RawPeer::wait_closed() {
  run_until([this] { return closed_; });
  return closed_;
}

void RawPeer::run_until(const std::function<bool()>& done) {
  const absl::Time deadline = Clock::system().now() + kTestTimeout;
  while (!done() && Clock::system().now() < deadline) {
    if (meanwhile_ != nullptr) meanwhile_();
    if (worker_->progress() || meanwhile_ != nullptr || !worker_->arm()) continue;
    pollfd descriptor = {.fd = worker_->descriptor(), .events = POLLIN, .revents = 0};
    ::poll(&descriptor, 1, 100);
  }
}

}  // namespace gradwire::transport
