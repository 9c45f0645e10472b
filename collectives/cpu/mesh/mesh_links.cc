// The part of MeshCore that makes connections, and hears of their ends.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/collectives/cpu/mesh/mesh_core.h"

namespace gradwire::collectives::cpu {
namespace {

// For a connection that came in to say who it is.
constexpr absl::Duration kHelloTimeout = absl::Seconds(10);
// A transport takes a whole message before it can be seen that it is no hello; meanwhile this much, looked at so often.
constexpr uint64_t kMostBeforeHello = 4096;
constexpr absl::Duration kStrangerSlice = absl::Milliseconds(20);
// How long what a rank has sent may take to arrive after the connection to it has ended.
constexpr absl::Duration kRestTimeout = absl::Milliseconds(500);
// Looks into the store for ranks that have not come yet.
constexpr absl::Duration kStoreSlice = absl::Milliseconds(20);
// Connections that have not said who they are, beyond two of each rank.
constexpr int kStrangers = 64;

}  // namespace

void MeshLink::on_closed(transport::Connection&, absl::Status reason) {
  core_.on_closed(shared_from_this(), reason);
}

std::shared_ptr<transport::ConnectionListener> MeshCore::accept(
    const std::string& transport, const std::shared_ptr<transport::Connection>& connection) {
  auto link = std::make_shared<MeshLink>(*this, -1, transport);
  MutexLock lock(mutex_);
  if (closed_ || unintroduced_ >= 2 * options_.size + kStrangers) return nullptr;
  ++unintroduced_;
  link->connection = connection;
  watch_stranger_locked(*link, timers_->clock().now() + kHelloTimeout);
  links_.insert(link);
  return link;
}

void MeshCore::watch_stranger_locked(MeshLink& link, absl::Time hello_by) {
  const absl::Time next = std::min(hello_by, timers_->clock().now() + kStrangerSlice);
  link.timer = timers_->schedule(next, [this, weak = link.weak_from_this(), hello_by] {
    const std::shared_ptr<MeshLink> stranger = weak.lock();
    if (stranger == nullptr) return;
    absl::Status reason;
    {
      MutexLock lock(mutex_);
      if (stranger->rank >= 0 || stranger->closed) return;
      if (stranger->connection->bytes_arrived() > kMostBeforeHello) {
        reason = absl::InvalidArgumentError("it sends much without saying who it is");
      } else if (timers_->clock().now() >= hello_by) {
        reason = absl::DeadlineExceededError("it has not said who it is");
      } else {
        watch_stranger_locked(*stranger, hello_by);
        return;
      }
    }
    stranger->connection->close(std::move(reason));
  });
}

absl::Status MeshCore::on_hello(const std::shared_ptr<MeshLink>& link, const Frame& frame,
                                absl::string_view token) {
  {
    MutexLock lock(mutex_);
    if (link->rank >= 0) return absl::InvalidArgumentError("a second hello");
    if (!same_secret(token, token_)) return absl::PermissionDeniedError("it does not belong to this world");
    if (frame.size != static_cast<uint64_t>(options_.size)) {
      return absl::InvalidArgumentError(
          absl::StrCat("it takes the world to have ", frame.size, " ranks, not ", options_.size));
    }
    if (frame.tag < 0 || frame.tag >= options_.size || frame.tag == options_.rank)
      return absl::InvalidArgumentError(absl::StrCat("it calls itself rank ", frame.tag));
    const int rank = static_cast<int>(frame.tag);
    Peer& from = peer(rank);
    if (from.lost) return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " was lost before"));
    if (from.in != nullptr)
      return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " is connected already"));
    from.in = link;
    link->rank = rank;
    --unintroduced_;
    timers_->cancel(std::exchange(link->timer, 0));
  }
  (void)link->connection->send({encode_frame({.kind = FrameKind::kWelcome}), {}});
  return absl::OkStatus();
}

void MeshCore::want_locked(int rank) {
  Peer& to = peer(rank);
  if (to.state != Peer::State::kIdle) return;
  to.state = Peer::State::kWanted;
  to.connect_by = timers_->clock().now() + options_.connect_timeout;
  if (std::exchange(finding_, true)) return;
  executor_->post([this] { find_peers(); });
}

void MeshCore::find_peers() {
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
        late = timers_->clock().now() >= peer(rank).connect_by;
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

void MeshCore::connect(int rank) {
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

absl::Status MeshCore::connect_by(transport::Transport& transport, int rank, const std::string& address) {
  auto link = std::make_shared<MeshLink>(*this, rank, transport.name());
  absl::Time connect_by;
  {
    MutexLock lock(mutex_);
    peer(rank).state = Peer::State::kConnecting;
    peer(rank).out = link;
    connect_by = peer(rank).connect_by;
    links_.insert(link);
  }
  absl::StatusOr<std::shared_ptr<transport::Connection>> connection =
      transport.connect(address, link, connect_by - timers_->clock().now());
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
      link->timer = timers_->schedule(connect_by, [connection = *connection] {
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

void MeshCore::on_closed(const std::shared_ptr<MeshLink>& link, const absl::Status& reason) {
  enum { kNothing, kTryNext, kRest, kLost } next = kNothing;
  int rank;
  absl::Status gone;
  {
    MutexLock lock(mutex_);
    link->closed = true;
    links_.erase(link);
    timers_->cancel(std::exchange(link->timer, 0));
    changed_.notify_all();
    rank = link->rank;
    if (rank < 0) --unintroduced_;
    if (rank < 0 || closed_) return;
    Peer& other = peer(rank);
    gone = absl::UnavailableError(link->left ? std::string("has left")
                                             : absl::StrCat("is gone: ", reason.message()));
    if (!link->made_here()) {
      next = kLost;
    } else if (!link->welcomed) {
      if (other.lost) return;
      next = kTryNext;
      absl::StrAppend(&other.failures, "; ", link->transport(), ": ", reason.message());
      other.state = Peer::State::kWanted;
      other.out = nullptr;
      if (!std::exchange(finding_, true)) executor_->post([this] { find_peers(); });
    } else if (other.in != nullptr && !other.in->closed) {
      next = kRest;
      timers_->schedule(timers_->clock().now() + kRestTimeout, [in = other.in, gone] {
        in->connection->close(absl::Status(gone.code(), absl::StrCat("it ", gone.message())));
      });
    } else {
      next = kLost;
    }
  }
  if (next == kRest) fail_sends(rank, gone);
  if (next == kLost) lose(rank, gone);
}

void MeshCore::lose(int rank, const absl::Status& reason) {
  Todos todos;
  std::vector<std::shared_ptr<MeshLink>> links;
  {
    MutexLock lock(mutex_);
    Peer& other = peer(rank);
    if (closed_ || other.lost) return;
    other.lost = true;
    Matcher::Actions actions;
    matcher_.lost(rank, reason, actions);
    todos = take_locked(std::move(actions));
    for (const auto& link : {other.out, other.in}) {
      if (link != nullptr && !link->closed && link->connection != nullptr) links.push_back(link);
    }
  }
  perform(std::move(todos));
  fail_sends(rank, reason);
  for (const std::shared_ptr<MeshLink>& link : links) link->connection->close(reason);
}

}  // namespace gradwire::collectives::cpu
