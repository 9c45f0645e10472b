#include "gradwire/collectives/cpu/mesh/mesh_links.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/random_id.h"

namespace gradwire::collectives::cpu {
namespace {

constexpr char kTokenKey[] = "mesh/token";
// The first message of a rank that connects.
constexpr uint64_t kMaxHelloBytes = kFrameBytes + kTokenBytes;
// How long what a rank has sent may take to arrive after the connection to it has ended.
constexpr absl::Duration kRestTimeout = absl::Milliseconds(500);
// How often the store is asked for ranks that have not come yet.
constexpr absl::Duration kStoreSlice = absl::Milliseconds(20);
// Connections that have not said who they are, beyond two of each rank.
constexpr int kStrangers = 64;
// What was sent before a shutdown leaves within this time, or not at all.
constexpr absl::Duration kFlush = absl::Seconds(2);

}  // namespace

class MeshLinks::Link : public transport::ConnectionListener, public std::enable_shared_from_this<Link> {
 public:
  // `rank`: to which it is made; -1 for a connection that came in and has not said who it is.
  Link(MeshLinks& links, int rank, std::string transport)
      : made_here(rank >= 0), transport(std::move(transport)), rank(rank), links_(links) {}

  void on_message(transport::Connection& connection, transport::Message message) override {
    links_.on_message(shared_from_this(), connection, std::move(message));
  }
  uint64_t max_message_bytes() const override {
    return introduced() ? ConnectionListener::max_message_bytes() : kMaxHelloBytes;
  }
  bool introduced() const override { return made_here || introduced_.load(std::memory_order_relaxed); }
  void on_closed(transport::Connection&, absl::Status reason) override {
    links_.on_closed(shared_from_this(), reason);
  }

  const bool made_here;
  const std::string transport;
  // The transport's thread reads it without the lock.
  std::atomic<bool> introduced_{false};
  // Guarded by MeshLinks::mutex_. `rank` and `connection` stay as they are once they are set.
  int rank;
  ConnectionPtr connection;
  bool welcomed = false;
  bool left = false;  // It said goodbye.
  bool closed = false;
  uint64_t timer = 0;

 private:
  MeshLinks& links_;  // It ends its transports, and with them this link, before it goes.
};

std::string MeshLinks::key_of(int rank) { return absl::StrCat("mesh/rank/", rank); }

// Numbered steps: 1. agree on a secret; 2. listen; 3. say where.
absl::Status MeshLinks::start(std::vector<std::unique_ptr<transport::Transport>> transports) {
  transports_ = std::move(transports);
  std::string mine;
  while (mine.size() < kTokenBytes) absl::StrAppend(&mine, absl::Hex(random_id(), absl::kZeroPad16));
  GRADWIRE_ASSIGN_OR_RETURN(token_,
                            options_.store->try_compare_set(kTokenKey, "", mine, options_.connect_timeout));
  if (token_.size() != kTokenBytes) {
    return absl::FailedPreconditionError(
        absl::StrCat("\"", kTokenKey, "\" in ", options_.store->description(), " holds something else"));
  }
  std::string record;
  for (const auto& transport : transports_) {
    GRADWIRE_ASSIGN_OR_RETURN(
        const std::string address,
        transport->listen([this, name = transport->name()](const ConnectionPtr& connection) {
          return accept(name, connection);
        }));
    absl::StrAppend(&record, transport->name(), " ", address, "\n");
  }
  return options_.store->try_set(key_of(options_.rank), record, options_.connect_timeout);
}

MeshLinks::LinkPtr MeshLinks::accept(const std::string& transport, const ConnectionPtr& connection) {
  auto link = std::make_shared<Link>(*this, -1, transport);
  MutexLock lock(mutex_);
  if (closed_ || unintroduced_ >= 2 * options_.size + kStrangers) return nullptr;
  ++unintroduced_;
  link->connection = connection;
  links_.insert(link);
  return link;
}

absl::Status MeshLinks::on_hello(const LinkPtr& link, const Frame& frame, absl::string_view token) {
  const int rank = static_cast<int>(frame.tag);
  {
    MutexLock lock(mutex_);
    if (link->rank >= 0) return absl::InvalidArgumentError("a second hello");
    if (!same_secret(token, token_)) return absl::PermissionDeniedError("it does not belong to this world");
    if (frame.size != static_cast<uint64_t>(options_.size)) {
      return absl::InvalidArgumentError(
          absl::StrCat("world size mismatch: it says ", frame.size, ", expected ", options_.size));
    }
    if (frame.tag < 0 || frame.tag >= options_.size || frame.tag == options_.rank)
      return absl::InvalidArgumentError(absl::StrCat("it calls itself rank ", frame.tag));
    Peer& from = peer(rank);
    if (from.lost) return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " was lost before"));
    if (from.in != nullptr)
      return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " is connected already"));
    from.in = link;
    link->rank = rank;
    link->introduced_ = true;
    --unintroduced_;
  }
  observer_.on_in(rank, link->connection);
  (void)link->connection->send({encode_frame({.kind = FrameKind::kWelcome}), {}});
  return absl::OkStatus();
}

absl::Status MeshLinks::on_welcome(const LinkPtr& link) {
  {
    MutexLock lock(mutex_);
    if (link->connection == nullptr || link->welcomed)
      return absl::InvalidArgumentError("kWelcome came twice, or before kHello");
    link->welcomed = true;
    peer(link->rank).state = Peer::State::kOpen;
    timers_.cancel(std::exchange(link->timer, 0));
  }
  observer_.on_out(link->rank, link->connection);
  return absl::OkStatus();
}

void MeshLinks::on_message(const LinkPtr& link, transport::Connection& connection,
                           transport::Message message) {
  const absl::StatusOr<Frame> frame = parse_frame(message);
  absl::Status status = frame.ok() ? on_frame(link, *frame, std::move(message)) : frame.status();
  if (status.ok()) return;
  log(LogLevel::kWarning, "rank ", options_.rank, " ends a connection with ", connection.peer_address(), ": ",
      status.message());
  connection.close(std::move(status));
}

absl::Status MeshLinks::on_frame(const LinkPtr& link, const Frame& frame, transport::Message message) {
  if (frame.kind == FrameKind::kGoodbye) {
    MutexLock lock(mutex_);
    link->left = true;
    return absl::OkStatus();
  }
  if (frame.kind == FrameKind::kHello && !link->made_here)
    return on_hello(link, frame, absl::string_view(message.header).substr(kFrameBytes));
  if (frame.kind == FrameKind::kWelcome && link->made_here) return on_welcome(link);
  {
    MutexLock lock(mutex_);
    if (link->rank < 0) return absl::InvalidArgumentError("it has not said who it is");
    if (link->made_here && !link->welcomed) return absl::InvalidArgumentError("it has not said welcome");
    if (closed_ || peer(link->rank).lost) return absl::OkStatus();
  }
  return observer_.on_frame(link->rank, !link->made_here, frame, std::move(message));
}

void MeshLinks::want(int rank) {
  MutexLock lock(mutex_);
  Peer& to = peer(rank);
  if (to.state != Peer::State::kIdle) return;
  to.state = Peer::State::kWanted;
  to.connect_by = timers_.clock().now() + options_.connect_timeout;
  find_locked();
}

void MeshLinks::find_locked() {
  if (!std::exchange(finding_, true)) executor_.post([this] { find_peers(); });
}

void MeshLinks::find_peers() {
  while (true) {
    std::vector<std::pair<int, bool>> wanted;  // With whether the record is known.
    {
      MutexLock lock(mutex_);
      for (int rank = 0; rank < options_.size; ++rank) {
        if (peer(rank).state == Peer::State::kWanted && !peer(rank).lost)
          wanted.emplace_back(rank, !peer(rank).record.empty());
      }
      finding_ = !closed_ && !wanted.empty();
      if (!finding_) return;
    }
    std::string missing;
    for (const auto& [rank, known] : wanted) {
      absl::StatusOr<std::string> record;
      if (!known) record = options_.store->try_get(key_of(rank), absl::ZeroDuration());
      bool late;
      {
        MutexLock lock(mutex_);
        late = timers_.clock().now() >= peer(rank).connect_by;
        if (record.ok() && !known) peer(rank).record = *record;
      }
      if (known || record.ok()) {
        connect(rank);
      } else if (!absl::IsDeadlineExceeded(record.status())) {
        lose(rank, absl::UnavailableError(absl::StrCat("cannot be found: ", record.status().message())));
      } else if (late) {
        lose(rank, absl::UnavailableError(
                       absl::StrCat("has not come within ", absl::FormatDuration(options_.connect_timeout))));
      } else {
        missing = key_of(rank);
      }
    }
    if (missing.empty()) continue;
    BlockingScope blocking;
    (void)options_.store->try_wait({missing}, kStoreSlice);
  }
}

void MeshLinks::connect(int rank) {
  while (true) {
    std::string way;
    {
      MutexLock lock(mutex_);
      Peer& to = peer(rank);
      const std::vector<std::string> ways = absl::StrSplit(to.record, '\n', absl::SkipEmpty());
      if (closed_ || to.lost) return;
      if (to.tried < ways.size()) way = ways[to.tried++];
    }
    if (way.empty()) break;
    const std::pair<std::string, std::string> parts = absl::StrSplit(way, absl::MaxSplits(' ', 1));
    absl::Status status = absl::UnavailableError("this rank does not use it");
    for (const auto& transport : transports_) {
      if (transport->name() != parts.first) continue;
      status = transport->may_reach(parts.second) ? connect_by(*transport, rank, parts.second)
                                                  : absl::UnavailableError("it is on another host");
    }
    if (status.ok()) return;
    MutexLock lock(mutex_);
    absl::StrAppend(&peer(rank).failures, "; ", parts.first, ": ", status.message());
  }
  std::string failures;
  {
    MutexLock lock(mutex_);
    failures = peer(rank).failures;
  }
  lose(rank, absl::UnavailableError(absl::StrCat("cannot be reached", failures)));
}

absl::Status MeshLinks::connect_by(transport::Transport& transport, int rank, const std::string& address) {
  auto link = std::make_shared<Link>(*this, rank, transport.name());
  absl::Time connect_by;
  {
    MutexLock lock(mutex_);
    peer(rank).state = Peer::State::kConnecting;
    peer(rank).out = link;
    connect_by = peer(rank).connect_by;
    links_.insert(link);
  }
  absl::StatusOr<ConnectionPtr> connection =
      transport.connect(address, link, connect_by - timers_.clock().now());
  if (!connection.ok()) {
    MutexLock lock(mutex_);
    links_.erase(link);
    peer(rank).state = Peer::State::kWanted;
    peer(rank).out = nullptr;
    changed_.notify_all();
    return connection.status();
  }
  bool closed;
  {
    MutexLock lock(mutex_);
    link->connection = *connection;
    closed = closed_;
    if (!link->closed) {
      link->timer = timers_.schedule(connect_by, [connection = *connection] {
        connection->close(absl::UnavailableError("no answer in time"));
      });
    }
  }
  if (closed) {
    (*connection)->close(absl::CancelledError("the mesh was shut down"));
    return absl::OkStatus();
  }
  const Frame hello{
      .kind = FrameKind::kHello, .tag = options_.rank, .size = static_cast<uint64_t>(options_.size)};
  // If it fails, on_closed hears of it.
  (void)(*connection)->send({encode_frame(hello, token_.size()) + token_, {}});
  return absl::OkStatus();
}

void MeshLinks::on_closed(const LinkPtr& link, const absl::Status& reason) {
  enum { kNothing, kTryNext, kRest, kLost } next = kNothing;
  int rank;
  absl::Status gone;
  {
    MutexLock lock(mutex_);
    link->closed = true;
    links_.erase(link);
    timers_.cancel(std::exchange(link->timer, 0));
    changed_.notify_all();
    rank = link->rank;
    if (rank < 0) --unintroduced_;
    if (rank < 0 || closed_) return;
    Peer& other = peer(rank);
    gone = absl::UnavailableError(link->left ? std::string("has left")
                                             : absl::StrCat("is gone: ", reason.message()));
    if (!link->made_here) {
      next = kLost;
    } else if (!link->welcomed) {
      if (other.lost) return;
      next = kTryNext;
      absl::StrAppend(&other.failures, "; ", link->transport, ": ", reason.message());
      other.state = Peer::State::kWanted;
      other.out = nullptr;
      find_locked();
    } else if (other.in != nullptr && !other.in->closed) {
      next = kRest;
      timers_.schedule(timers_.clock().now() + kRestTimeout, [in = other.in, gone] {
        in->connection->close(absl::Status(gone.code(), absl::StrCat("it ", gone.message())));
      });
    } else {
      next = kLost;
    }
  }
  if (next == kRest) observer_.on_out_closed(rank, gone);
  if (next == kLost) lose(rank, gone);
}

void MeshLinks::lose(int rank, const absl::Status& reason) {
  std::vector<ConnectionPtr> connections;
  {
    MutexLock lock(mutex_);
    Peer& other = peer(rank);
    if (closed_ || other.lost) return;
    other.lost = true;
    for (const LinkPtr& link : {other.out, other.in}) {
      if (link != nullptr && !link->closed && link->connection != nullptr)
        connections.push_back(link->connection);
    }
  }
  observer_.on_lost(rank, reason);
  for (const ConnectionPtr& connection : connections) connection->close(reason);
}

void MeshLinks::shutdown(const absl::Status& reason) {
  std::vector<ConnectionPtr> connections;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    for (const LinkPtr& link : links_) {
      if (link->connection != nullptr) connections.push_back(link->connection);
    }
  }
  for (const ConnectionPtr& connection : connections) {
    (void)connection->send({encode_frame({.kind = FrameKind::kGoodbye}), {}});
    connection->close(reason, kFlush);
  }
  const absl::Time deadline = Clock::system().now() + kFlush;
  mutex_.lock();
  while (!links_.empty() && Clock::system().now() < deadline)
    changed_.wait_for(mutex_, deadline - Clock::system().now());
  mutex_.unlock();
  for (const auto& transport : transports_) transport->shutdown();
}

}  // namespace gradwire::collectives::cpu
