// Reads the input as bytes of three clients of PyTorch's TCPStore (store/c10d/c10d_protocol.h) at a server.
// For each part: a byte that selects the client, a byte with the length, and the bytes. The requests that the
// parser finds must be, encoded again, the bytes that it has read, however they are divided. The session must
// answer each request that does not wait, and each wait once.

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/store/c10d/c10d_session.h"
#include "gradwire/store/tcp/tcp_store_service.h"
#include "gradwire/tests/fuzz/fuzzing.h"

namespace {

using gradwire::fuzzing::require;
using gradwire::store::C10dParser;
using gradwire::store::C10dQuery;
using gradwire::store::C10dRequest;
using gradwire::store::C10dSession;
using gradwire::store::TcpStoreService;
namespace proto = gradwire::store::proto;

constexpr absl::Time kNow = absl::UnixEpoch();
constexpr int kClients = 3;

std::string number(uint64_t value, int size) {
  std::string bytes;
  for (int i = 0; i < size; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
  return bytes;
}

// The bytes of a request, by the table in c10d_protocol.h.
std::string encode(const C10dRequest& request) {
  std::string bytes(1, static_cast<char>(request.query));
  switch (request.query) {
    case C10dQuery::kCheck:
    case C10dQuery::kWait:
    case C10dQuery::kMultiGet:
      bytes += number(request.strings.size(), 8);
      break;
    case C10dQuery::kMultiSet:
      require(request.strings.size() % 2 == 0, "a key without a value");
      bytes += number(request.strings.size() / 2, 8);
      break;
    default:
      break;
  }
  for (const std::string& text : request.strings) bytes += number(text.size(), 8) + text;
  if (request.query == C10dQuery::kAdd) bytes += number(request.number, 8);
  if (request.query == C10dQuery::kPing || request.query == C10dQuery::kValidate) {
    bytes += number(request.number, 4);
  }
  return bytes;
}

// Reads the stream of one client, and checks that what the parser finds is what it has read.
class CheckedParser {
 public:
  // False after an error.
  bool read(absl::string_view bytes) {
    stream_.append(bytes.data(), bytes.size());
    while (true) {
      C10dRequest request;
      const absl::StatusOr<bool> complete = parser_.read(bytes, request);
      if (!complete.ok()) return false;
      if (!*complete) break;
      const std::string encoded = encode(request);
      require(stream_.compare(0, encoded.size(), encoded) == 0, "a request differs from its bytes");
      stream_.erase(0, encoded.size());
    }
    require(bytes.empty(), "bytes were not taken");
    require(parser_.between_requests() == stream_.empty(), "the parser waits at the wrong place");
    return true;
  }

 private:
  C10dParser parser_;
  // The bytes behind the last request.
  std::string stream_;
};

class Clients;

class Client : public C10dSession::Server {
 public:
  Client(Clients& all, uint64_t number) : all_(all), number_(number), session_(number + 1) {}

  absl::Status start() { return session_.start(*this); }
  absl::Status receive(absl::string_view bytes) {
    const bool valid = parser_.read(bytes);
    const absl::Status status = session_.receive(bytes, *this);
    require(valid || !status.ok(), "the session accepts what the parser refuses");
    output_bytes_ += session_.take_output().size();
    return status;
  }
  absl::Status answer(const proto::Response& response) { return session_.answer(response); }

  absl::Status call(const proto::Request& request) override;
  void cancel(uint64_t request) override;
  int64_t add_workers(int64_t n) override;

 private:
  Clients& all_;
  const uint64_t number_;
  C10dSession session_;
  CheckedParser parser_;
  std::size_t output_bytes_ = 0;
};

class Clients {
 public:
  Clients() {
    for (int i = 0; i < kClients; ++i) restart(static_cast<std::size_t>(i));
  }
  Client& at(std::size_t slot) { return *clients_[slot]; }
  // Replaces a client whose connection was closed.
  void restart(std::size_t slot) {
    if (clients_[slot] != nullptr) {
      TcpStoreService::Answers answers;
      service.close(sessions_[slot], answers);
      deliver(answers);
    }
    sessions_[slot] = next_session_++;
    clients_[slot] = std::make_unique<Client>(*this, sessions_[slot]);
    require(clients_[slot]->start().ok(), "the session was not opened");
  }
  // Passes on answers to clients that waited.
  void deliver(const TcpStoreService::Answers& answers) {
    for (const TcpStoreService::Answer& answer : answers) {
      Client* const client = find(answer.session);
      require(client != nullptr && client->answer(answer.response).ok(), "an answer to a wait");
    }
  }
  Client* find(uint64_t session) {
    for (std::size_t i = 0; i < clients_.size(); ++i) {
      if (sessions_[i] == session) return clients_[i].get();
    }
    return nullptr;
  }

  TcpStoreService service{/*number=*/7};

 private:
  std::array<std::unique_ptr<Client>, kClients> clients_;
  std::array<uint64_t, kClients> sessions_ = {};
  uint64_t next_session_ = 1;
};

absl::Status Client::call(const proto::Request& request) {
  TcpStoreService::Answers answers;
  const absl::Status status = all_.service.handle(number_, request, kNow, answers);
  require(status.ok(), "the session made a call that breaks the protocol");
  absl::Status own;
  bool answered = false;
  for (const TcpStoreService::Answer& answer : answers) {
    Client* const client = all_.find(answer.session);
    require(client != nullptr, "an answer to a client that has gone");
    const absl::Status each = client->answer(answer.response);
    if (answer.session != number_ || answer.response.id() != request.id()) continue;
    answered = true;
    own = each;
  }
  require(answered || request.has_wait(), "a call that does not wait was not answered");
  return own;
}

void Client::cancel(uint64_t request) {
  TcpStoreService::Answers answers;
  all_.service.cancel(number_, request, answers);
  all_.deliver(answers);
}

int64_t Client::add_workers(int64_t n) {
  TcpStoreService::Answers answers;
  const int64_t workers = all_.service.add_workers(n, answers);
  require(workers >= 0 && workers <= 1 << 20, "the number of workers is out of range");
  return workers;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  gradwire::fuzzing::Input input(data, size);
  Clients clients;
  while (!input.empty()) {
    const std::size_t slot = input.number(1) % kClients;
    const std::string bytes = input.text(input.number(1));
    if (!clients.at(slot).receive(bytes).ok()) clients.restart(slot);
    require(clients.service.num_waiters() <= kClients, "a client waits twice");
  }
  TcpStoreService::Answers answers;
  clients.service.stop(answers);
  require(clients.service.num_waiters() == 0, "a call waits after the end");
  return 0;
}
