#include "gradwire/rpc/inspect/observer.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/name.h"
#include "gradwire/rpc/inspect/limits.h"
#include "gradwire/rpc/inspect/worker_connection.h"
#include "gradwire/security/setup/environment.h"
#include "gradwire/security/setup/make_credentials.h"
#include "gradwire/transport/tcp/tcp_transport.h"

namespace gradwire::rpc {

absl::Status check_answer(const proto::AgentState& state, uint64_t incarnation) {
  if (state.incarnation() != incarnation) {
    return absl::InvalidArgumentError("the answer describes another worker");
  }
  GRADWIRE_RETURN_IF_ERROR(check_name("worker name", state.name()));
  int largest = 0;
  const auto see = [&](const auto& list) { largest = std::max(largest, list.size()); };
  see(state.peers());
  see(state.pending());
  see(state.served());
  see(state.functions());
  see(state.rrefs());
  see(state.held());
  see(state.groups());
  see(state.autograd().contexts());
  see(state.autograd().passes());
  for (const proto::PassSummary& pass : state.autograd().passes()) {
    see(pass.waits_for());
    see(pass.awaited());
    see(pass.reached());
  }
  for (const proto::PeerState& peer : state.peers()) {
    see(peer.links());
    see(peer.given_up());
    see(peer.transports());
  }
  if (largest > static_cast<int>(kMostInspected) || state.tables_size() > kMostInspectedNumbers ||
      state.statistics_size() > kMostInspectedNumbers) {
    return absl::InvalidArgumentError(
        absl::StrCat("a list of the answer has more entries than ", kMostInspected));
  }
  if (state.flight().lines().size() > kMaxFlightBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a part of a flight record has more bytes than ", kMaxFlightBytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Observer>> Observer::open(const Options& options) {
  GRADWIRE_RETURN_IF_ERROR(check_name("observer name", options.name));
  transport::TcpOptions tcp;
  GRADWIRE_ASSIGN_OR_RETURN(const SecurityOptions security, security::with_environment(options.security));
  GRADWIRE_ASSIGN_OR_RETURN(tcp.credentials, security::make_credentials(security));
  tcp.purpose = "rpc";
  tcp.own_name = options.name;
  tcp.allowed_users = security.allowed_users;
  return std::unique_ptr<Observer>(new Observer(options, transport::make_tcp_transport(std::move(tcp))));
}

Observer::Observer(Options options, std::unique_ptr<transport::Transport> transport)
    : options_(std::move(options)), transport_(std::move(transport)) {}

Observer::~Observer() { transport_->shutdown(); }

absl::StatusOr<std::shared_ptr<WorkerConnection>> Observer::connection_to(const proto::WorkerRecord& worker,
                                                                          absl::Duration timeout) {
  std::shared_ptr<WorkerConnection>& known = connections_[worker.incarnation()];
  if (known != nullptr && !known->ended()) return known;
  known = nullptr;
  absl::Status last = absl::UnavailableError(
      "the worker does not listen over tcp, which an observer uses: add \"tcp\" to "
      "RpcBackendOptions::transports");
  for (const proto::Address& address : worker.addresses()) {
    if (address.transport() != "tcp") continue;
    auto connection = std::make_shared<WorkerConnection>(worker.incarnation());
    auto opened = transport_->connect(address.address(), connection, timeout);
    if (!opened.ok()) {
      last = opened.status();
      continue;
    }
    connection->open(*std::move(opened), options_.name);
    known = connection;
    return connection;
  }
  return last;
}

std::vector<Observer::Answer> Observer::ask(const std::vector<proto::WorkerRecord>& workers,
                                            absl::Duration timeout) {
  std::vector<Question> questions;
  for (const proto::WorkerRecord& worker : workers) {
    questions.push_back({.worker = worker, .request = {}});
    questions.back().request.set_most(options_.most);
  }
  return ask_each(questions, timeout);
}

std::vector<Observer::Answer> Observer::ask_each(const std::vector<Question>& questions,
                                                 absl::Duration timeout) {
  const absl::Time deadline = Clock::system().now() + timeout;
  std::set<uint64_t> wanted;
  for (const Question& each : questions) wanted.insert(each.worker.incarnation());
  for (auto entry = connections_.begin(); entry != connections_.end();) {
    if (!wanted.contains(entry->first) && entry->second != nullptr) entry->second->close();
    entry = wanted.contains(entry->first) ? std::next(entry) : connections_.erase(entry);
  }
  std::vector<absl::StatusOr<std::shared_ptr<WorkerConnection>>> asked;
  const uint64_t question = next_question_++;
  for (const Question& each : questions) {
    asked.push_back(connection_to(each.worker, timeout));
    if (asked.back().ok()) (*asked.back())->ask(question, each.request.SerializeAsString());
  }
  std::vector<Answer> answers;
  for (std::size_t i = 0; i < questions.size(); ++i) {
    absl::StatusOr<std::shared_ptr<WorkerConnection>>& connection = asked[i];
    Answer answer = connection.ok() ? (*connection)->wait(question, deadline) : Answer(connection.status());
    if (answer.ok()) {
      if (absl::Status checked = check_answer(*answer, questions[i].worker.incarnation()); !checked.ok()) {
        (*connection)->close();
        answer = checked;
      }
    }
    answers.push_back(std::move(answer));
  }
  return answers;
}

Exchange Observer::last_exchange(uint64_t incarnation) const {
  const auto found = connections_.find(incarnation);
  return found == connections_.end() || found->second == nullptr ? Exchange()
                                                                 : found->second->last_exchange();
}

}  // namespace gradwire::rpc
