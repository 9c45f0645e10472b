#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/base/mutex.h"
#include "gradwire/tools/bench/run/clocks.h"
#include "gradwire/tools/bench/run/footprint.h"
#include "gradwire/tools/bench/suites/case_name.h"
#include "gradwire/tools/bench/transport/gradwire_transport.h"
#include "gradwire/tools/bench/transport/mirror.h"
#include "gradwire/transport/tcp/tcp_transport.h"

namespace gradwire::bench {
namespace {

using transport::Connection;
using transport::Message;

std::unique_ptr<transport::Transport> make_transport() {
  transport::TcpOptions options;
  options.bind_address = "127.0.0.1";
  return transport::make_tcp_transport(options);
}

// The usual soft limit of descriptors is about the number of connections.
void raise_descriptor_limit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

void sleep_until(int64_t nanoseconds) {
  const timespec until{.tv_sec = nanoseconds / 1'000'000'000, .tv_nsec = nanoseconds % 1'000'000'000};
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr);
}

class ClientConnections;

// One connection to the server, with at most one message under way.
class Client final : public transport::ConnectionListener {
 public:
  explicit Client(ClientConnections& all) : all_(all) {}

  void connect(transport::Transport& transport, const std::string& address,
               const std::shared_ptr<Client>& self) {
    auto connection = transport.connect(address, self, absl::Seconds(30));
    if (!connection.ok()) throw std::runtime_error(connection.status().ToString());
    connection_ = *std::move(connection);
  }

  bool waits() const { return waits_.load(std::memory_order_acquire); }
  // REQUIRES: !waits()
  absl::Status send() {
    waits_.store(true, std::memory_order_relaxed);
    sent_ns_ = nanoseconds();
    return connection_->send({.header = "message."}).status();
  }

  void on_message(Connection&, Message) override;
  void on_closed(Connection&, absl::Status reason) override;

 private:
  ClientConnections& all_;
  std::shared_ptr<Connection> connection_;
  std::atomic<bool> waits_{false};
  int64_t sent_ns_ = 0;
};

// The connections of one process. A run has two parts:
// 1. Each connection sends its next message when it has the answer to the last one. The number of answers is
//    what the server achieves for this process.
// 2. Messages leave at half of that rate, on one connection after the other. Only these are timed.
class ClientConnections {
 public:
  ClientConnections(transport::Transport& transport, const std::string& address, int count) {
    for (int i = 0; i < count; ++i) {
      clients_.push_back(std::make_shared<Client>(*this));
      clients_.back()->connect(transport, address, clients_.back());
    }
  }

  Measurement run(double seconds) {
    const auto nanos = static_cast<int64_t>(seconds * 1e9);
    saturate(nanos / 3);
    const double rate = static_cast<double>(answers_) / (seconds / 3);
    pace(rate / 2, nanos - nanos / 3);
    Measurement result{.begin_ns = begin_ns_, .end_ns = nanoseconds()};
    result.micros = std::move(micros_);
    result.timed_calls = static_cast<int64_t>(result.micros.size());
    result.calls = result.timed_calls + answers_;
    result.seconds = static_cast<double>(result.end_ns - result.begin_ns) / 1e9;
    if (result.timed_calls == 0) throw std::runtime_error("the server answered nothing");
    return result;
  }

  // Called by the transport's thread.
  void answered(Client& client, int64_t sent_ns) {
    const int64_t now = nanoseconds();
    if (now < saturated_until_.load(std::memory_order_relaxed)) {
      ++answers_;
      if (const absl::Status sent = client.send(); !sent.ok()) fail(sent);
      return;
    }
    if (timed_) micros_.push_back(static_cast<float>(static_cast<double>(now - sent_ns) / 1000));
    under_way_.fetch_sub(1, std::memory_order_release);
  }

  void fail(const absl::Status& status) {
    MutexLock lock(mutex_);
    if (error_.ok()) error_ = status;
  }

 private:
  void saturate(int64_t nanos) {
    answers_ = 0;
    timed_ = false;
    begin_ns_ = nanoseconds();
    saturated_until_.store(begin_ns_ + nanos, std::memory_order_relaxed);
    for (const auto& client : clients_) send(*client);
    sleep_until(begin_ns_ + nanos);
    await_answers();
  }

  void pace(double per_second, int64_t nanos) {
    micros_.clear();
    timed_ = true;
    const int64_t begin = nanoseconds();
    const auto interval = static_cast<int64_t>(1e9 / std::max(per_second, 1.0));
    std::size_t next = 0;
    for (int64_t at = begin; at < begin + nanos; at += interval) {
      sleep_until(at);
      // A connection that still waits is left out.
      for (std::size_t tried = 0; tried < clients_.size(); ++tried) {
        Client& client = *clients_[next++ % clients_.size()];
        if (client.waits()) continue;
        send(client);
        break;
      }
    }
    await_answers();
  }

  void send(Client& client) {
    under_way_.fetch_add(1, std::memory_order_relaxed);
    if (const absl::Status sent = client.send(); !sent.ok()) throw std::runtime_error(sent.ToString());
  }

  void await_answers() {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    while (under_way_.load(std::memory_order_acquire) > 0) {
      if (const absl::Status failed = error(); !failed.ok()) throw std::runtime_error(failed.ToString());
      if (absl::Now() > deadline) throw std::runtime_error("no answer from the server within 30 s");
      absl::SleepFor(absl::Milliseconds(1));
    }
  }

  absl::Status error() {
    MutexLock lock(mutex_);
    return error_;
  }

  std::vector<std::shared_ptr<Client>> clients_;
  std::atomic<int64_t> saturated_until_{0};
  std::atomic<int> under_way_{0};
  int64_t begin_ns_ = 0;
  // Written by run() while nothing is under way, and by the transport's thread otherwise.
  int64_t answers_ = 0;
  bool timed_ = false;
  std::vector<float> micros_;

  Mutex mutex_;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
};

void Client::on_message(Connection&, Message) {
  const int64_t sent_ns = sent_ns_;
  waits_.store(false, std::memory_order_release);
  all_.answered(*this, sent_ns);
}

void Client::on_closed(Connection&, absl::Status reason) { all_.fail(reason); }

// The first member is the server. The others share the connections of the case among them.
class Clients final : public BenchProcess {
 public:
  std::string listen(const Endpoint& endpoint) override {
    raise_descriptor_limit();
    transport_ = make_transport();
    if (endpoint.rank != 0) return "";
    before_contact_ = footprint();
    const auto address = transport_->listen([this](const std::shared_ptr<Connection>&) {
      accepted_.fetch_add(1, std::memory_order_relaxed);
      return mirror_;
    });
    if (!address.ok()) throw std::runtime_error(address.status().ToString());
    return *address;
  }

  void join(const Endpoint& endpoint) override { endpoint_ = endpoint; }

  Measurement run(const Task& task) override {
    if (task.case_name == kFootprintCase) {
      const int accepted = accepted_.load(std::memory_order_relaxed);
      return accepted == 0 ? Measurement() : growth_per_peer(before_contact_, accepted);
    }
    const CaseName name = parse_case(task.case_name);
    if (name.operation != "clients" || name.count < 1 || name.count > 65'536) {
      throw std::invalid_argument("unknown case " + task.case_name);
    }
    // By default the kernel may end a sleep 50 us late.
    prctl(PR_SET_TIMERSLACK, 1'000, 0, 0, 0);
    if (connections_ == nullptr) {
      const int64_t clients = endpoint_.size - 1, index = endpoint_.rank - 1;
      connections_ = std::make_unique<ClientConnections>(
          *transport_, endpoint_.addresses.at(0),
          static_cast<int>(name.count * (index + 1) / clients - name.count * index / clients));
    }
    return connections_->run(task.seconds);
  }

 private:
  const std::shared_ptr<transport::ConnectionListener> mirror_ = make_mirror();
  Endpoint endpoint_;
  Footprint before_contact_;
  std::atomic<int> accepted_{0};
  std::unique_ptr<ClientConnections> connections_;
  // Destroyed first: its thread uses the others.
  std::unique_ptr<transport::Transport> transport_;
};

}  // namespace

std::unique_ptr<BenchProcess> make_gradwire_clients() { return std::make_unique<Clients>(); }

}  // namespace gradwire::bench
