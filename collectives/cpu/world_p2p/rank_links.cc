// The connections of a WorldP2p.
// - Outgoing: request_connection() wants one; find_peers() waits in the background for the rank's addresses
//   in the store; connect() tries them one by one; on_welcome() ends the handshake.
// - Incoming: accept() admits a stranger, and on_hello() makes it a rank.
// - The end: on_closed() decides what a closed connection means, end_sends() reports that nothing can be sent
//   to a rank, and lose() reports a lost rank once.
// mutex_ is never held while the observer or a transport is called: both may call back at once.

#include "gradwire/collectives/cpu/world_p2p/rank_links.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/log.h"
#include "gradwire/base/process/shortage.h"
#include "gradwire/base/random_id.h"

namespace gradwire::collectives::cpu {
namespace {

constexpr char kTokenKey[] = "mesh/token";
// Limit for the first message of a rank that connects.
constexpr uint64_t kMaxHelloBytes = kFrameBytes + kTokenBytes;
// How long messages of a rank may still arrive after this rank's connection to it was closed.
constexpr absl::Duration kDrainTimeout = absl::Milliseconds(500);
// Pause after an attempt to connect for which this process had no descriptor or memory left.
constexpr absl::Duration kShortagePause = absl::Milliseconds(100);
// How long one wait in the store for the record of a rank may take.
constexpr absl::Duration kStorePollTimeout = absl::Milliseconds(20);
// Limit for connections that have not sent kHello, in addition to two for each rank.
constexpr int kMaxExtraUnintroduced = 64;
// Time limit at shutdown for sending what is queued.
constexpr absl::Duration kFlushTimeout = absl::Seconds(2);

}  // namespace

class RankLinks::Link : public transport::ConnectionListener, public std::enable_shared_from_this<Link> {
 public:
  // `rank`: the rank to which this link connects; -1 for an accepted connection that has not sent kHello.
  Link(RankLinks& links, int rank, std::string transport)
      : outgoing(rank >= 0), transport(std::move(transport)), rank(rank), links_(links) {}

  void on_message(transport::Connection& connection, transport::Message message) override {
    links_.on_message(shared_from_this(), connection, std::move(message));
  }
  uint64_t max_message_bytes() const override {
    return introduced() ? ConnectionListener::max_message_bytes() : kMaxHelloBytes;
  }
  bool introduced() const override { return outgoing || introduced_.load(std::memory_order_relaxed); }
  void on_closed(transport::Connection&, absl::Status reason) override {
    links_.on_closed(shared_from_this(), reason);
  }

  const bool outgoing;
  const std::string transport;
  // Atomic because the transport's thread reads it without the lock.
  std::atomic<bool> introduced_{false};
  // Guarded by RankLinks::mutex_. `rank` and `connection` do not change once they are set.
  int rank;
  ConnectionPtr connection;
  bool welcomed = false;
  bool goodbye_received = false;
  bool closed = false;
  uint64_t timer = 0;

 private:
  RankLinks& links_;  // Outlives this link: its shutdown() ends the transports, and with them the links.
};

std::string RankLinks::key_of(int rank) { return absl::StrCat("mesh/rank/", rank); }

// Steps:
// 1. Agree on a secret.
// 2. Listen.
// 3. Publish the addresses.
absl::Status RankLinks::start(std::vector<std::unique_ptr<transport::Transport>> transports) {
  transports_ = std::move(transports);
  std::string mine;
  while (mine.size() < kTokenBytes) absl::StrAppend(&mine, absl::Hex(random_id(), absl::kZeroPad16));
  // Every rank proposes a secret. compare_set stores the first one, and returns it to all ranks.
  GRADWIRE_ASSIGN_OR_RETURN(token_,
                            options_.store->try_compare_set(kTokenKey, "", mine, options_.connect_timeout));
  if (token_.size() != kTokenBytes) {
    return absl::FailedPreconditionError(absl::StrCat("invalid value of \"", kTokenKey, "\" in ",
                                                      options_.store->description(), ": got ", token_.size(),
                                                      " bytes, expected ", kTokenBytes));
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

RankLinks::LinkPtr RankLinks::accept(const std::string& transport, const ConnectionPtr& connection) {
  auto link = std::make_shared<Link>(*this, -1, transport);
  MutexLock lock(mutex_);
  // A stranger can open any number of connections and send nothing. The transport closes each of them after a
  // while (ConnectionListener::introduced). The limit bounds how many there are until then, and leaves room
  // for two connections of each rank.
  if (closed_ || unintroduced_ >= 2 * options_.size + kMaxExtraUnintroduced) return nullptr;
  ++unintroduced_;
  link->connection = connection;
  links_.insert(link);
  return link;
}

// 1. Check the secret first: the errors of the other checks describe the world, and only a member may learn
//    them.
// 2. Check the rank. It must not replace a connection: a rank that was lost stays lost, because its earlier
//    operations have failed.
// 3. Report the connection to the observer.
// 4. Send kWelcome. The rank sends frames only after that, so the observer can answer each of them.
absl::Status RankLinks::on_hello(const LinkPtr& link, const Frame& frame, absl::string_view token) {
  const int rank = static_cast<int>(frame.tag);
  {
    MutexLock lock(mutex_);
    if (link->rank >= 0) return absl::InvalidArgumentError("duplicate kHello");
    if (!same_secret(token, token_))
      return absl::PermissionDeniedError("the connection has the secret of another world");
    if (frame.size != static_cast<uint64_t>(options_.size)) {
      return absl::InvalidArgumentError(
          absl::StrCat("world size mismatch: the peer reports ", frame.size, ", expected ", options_.size));
    }
    if (frame.tag < 0 || frame.tag >= options_.size || frame.tag == options_.rank)
      return absl::InvalidArgumentError(absl::StrCat("invalid rank ", frame.tag,
                                                     " in kHello: expected another rank of the ",
                                                     options_.size, " in this world"));
    Peer& from = peer(rank);
    if (from.lost)
      return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " reconnects after it was lost"));
    if (from.in != nullptr)
      return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " is already connected"));
    from.in = link;
    link->rank = rank;
    link->introduced_ = true;
    --unintroduced_;
  }
  observer_.on_in(rank, link->connection);
  (void)link->connection->send({encode_frame({.kind = FrameKind::kWelcome}), {}});
  return absl::OkStatus();
}

// The connection may be null here: on_message() can run before connect_by() has stored it. A peer that
// follows the protocol sends kWelcome only after kHello, which is sent later.
absl::Status RankLinks::on_welcome(const LinkPtr& link) {
  {
    MutexLock lock(mutex_);
    if (link->connection == nullptr || link->welcomed)
      return absl::InvalidArgumentError("unexpected kWelcome: duplicate, or before kHello");
    link->welcomed = true;
    peer(link->rank).state = Peer::State::kOpen;
    timers_.cancel(std::exchange(link->timer, 0));
  }
  observer_.on_out(link->rank, link->connection);
  return absl::OkStatus();
}

void RankLinks::on_message(const LinkPtr& link, transport::Connection& connection,
                           transport::Message message) {
  const absl::StatusOr<Frame> frame = parse_frame(message);
  absl::Status status = frame.ok() ? on_frame(link, *frame, std::move(message)) : frame.status();
  if (status.ok()) return;
  log(LogLevel::kWarning, "rank ", options_.rank, " closes the connection with ", connection.peer_address(),
      ": ", status.message());
  connection.close(std::move(status));
}

absl::Status RankLinks::on_frame(const LinkPtr& link, const Frame& frame, transport::Message message) {
  if (frame.kind == FrameKind::kGoodbye) {
    MutexLock lock(mutex_);
    link->goodbye_received = true;
    return absl::OkStatus();
  }
  if (frame.kind == FrameKind::kHello && !link->outgoing)
    return on_hello(link, frame, absl::string_view(message.header).substr(kFrameBytes));
  if (frame.kind == FrameKind::kWelcome && link->outgoing) return on_welcome(link);
  {
    MutexLock lock(mutex_);
    if (link->rank < 0) return absl::InvalidArgumentError("frame before kHello");
    if (link->outgoing && !link->welcomed) return absl::InvalidArgumentError("frame before kWelcome");
    // The rank was lost while this frame arrived. on_lost() must stay the last call for it.
    if (closed_ || peer(link->rank).lost) return absl::OkStatus();
  }
  return observer_.on_frame(link->rank, !link->outgoing, frame, std::move(message));
}

void RankLinks::request_connection(int rank) {
  MutexLock lock(mutex_);
  Peer& to = peer(rank);
  if (to.state != Peer::State::kIdle) return;
  // First: if it throws, the next request for the rank tries again.
  find_locked();
  to.state = Peer::State::kWanted;
  to.connect_by = timers_.clock().now() + options_.connect_timeout;
}

// One task at a time searches for all wanted ranks. find_peers() clears the flag under the lock, in the same
// step in which it sees that no rank is wanted. So a rank that is wanted later starts a new task, and none is
// forgotten.
void RankLinks::find_locked() {
  if (finding_peers_) return;
  // The task waits for the lock that the caller holds.
  executor_.post([this] { find_peers(); });
  finding_peers_ = true;
}

// Each round:
// 1. Collect the wanted ranks; end if there are none.
// 2. Connect to those whose addresses are known. A rank whose first address has failed comes here again
//    (on_closed), and continues with its next address.
// 3. Ask the store for the others, without waiting.
// 4. Wait for one missing rank, for a short time only: another rank may be published first, or become wanted.
void RankLinks::find_peers() {
  while (true) {
    std::vector<std::pair<int, bool>> wanted;  // Rank, and whether its record is known.
    {
      MutexLock lock(mutex_);
      for (int rank = 0; rank < options_.size; ++rank) {
        if (peer(rank).state == Peer::State::kWanted && !peer(rank).lost)
          wanted.emplace_back(rank, !peer(rank).record.empty());
      }
      finding_peers_ = !closed_ && !wanted.empty();
      if (!finding_peers_) return;
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
        // DeadlineExceeded means that the rank has not published its addresses yet.
      } else if (!absl::IsDeadlineExceeded(record.status())) {
        end_sends(rank, absl::UnavailableError(
                            absl::StrCat("has no valid address in the store: ", record.status().message())));
      } else if (late) {
        end_sends(rank, absl::UnavailableError(absl::StrCat("did not publish its address within ",
                                                            absl::FormatDuration(options_.connect_timeout))));
      } else {
        missing = key_of(rank);
      }
    }
    if (missing.empty()) continue;
    BlockingScope blocking;
    (void)options_.store->try_wait({missing}, kStorePollTimeout);
  }
}

void RankLinks::connect(int rank) {
  while (true) {
    std::string route;
    {
      MutexLock lock(mutex_);
      Peer& to = peer(rank);
      const std::vector<std::string> routes = absl::StrSplit(to.record, '\n', absl::SkipEmpty());
      if (closed_ || to.lost) return;
      if (to.tried < routes.size()) route = routes[to.tried++];
    }
    if (route.empty()) break;
    const std::pair<std::string, std::string> parts = absl::StrSplit(route, absl::MaxSplits(' ', 1));
    absl::Status status = absl::UnavailableError("not enabled on this rank");
    for (const auto& transport : transports_) {
      if (transport->name() != parts.first) continue;
      status = transport->may_reach(parts.second) ? connect_by(*transport, rank, parts.second)
                                                  : absl::UnavailableError("it is on another host");
    }
    if (status.ok()) return;
    MutexLock lock(mutex_);
    absl::StrAppend(&peer(rank).failures, "; ", parts.first, ": ", status.message());
    if (is_local_shortage(status)) peer(rank).shortage = true;
  }
  if (try_again(rank)) return;
  std::string failures;
  absl::StatusCode code;
  {
    MutexLock lock(mutex_);
    failures = peer(rank).failures;
    code = peer(rank).shortage ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kUnavailable;
  }
  end_sends(rank, absl::Status(code, absl::StrCat("cannot be reached", failures)));
}

// The rank is not wanted during the pause, so that find_peers() leaves it alone.
bool RankLinks::try_again(int rank) {
  MutexLock lock(mutex_);
  Peer& to = peer(rank);
  const absl::Time next = timers_.clock().now() + kShortagePause;
  if (!to.shortage || next >= to.connect_by) return false;
  to.tried = 0;
  to.shortage = false;
  to.failures.clear();
  to.state = Peer::State::kPaused;
  timers_.schedule(next, [this, rank] {
    MutexLock lock(mutex_);
    if (closed_ || peer(rank).state != Peer::State::kPaused) return;
    peer(rank).state = Peer::State::kWanted;
    find_locked();
  });
  return true;
}

// The transport may call on_message() and on_closed() of the link before connect() has returned. So:
// 1. Enter the link in the tables, so that these calls find it.
// 2. Connect. If that fails, undo step 1; connect() then tries the next address.
// 3. Store the connection. If shutdown() has run meanwhile, it did not see this connection, so close it here.
// 4. Send kHello. A timer closes the connection if kWelcome does not arrive in time.
absl::Status RankLinks::connect_by(transport::Transport& transport, int rank, const std::string& address) {
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
        connection->close(absl::UnavailableError("no kWelcome in time"));
      });
    }
  }
  if (closed) {
    (*connection)->close(absl::CancelledError("the process group was destroyed"));
    return absl::OkStatus();
  }
  const Frame hello{
      .kind = FrameKind::kHello, .tag = options_.rank, .size = static_cast<uint64_t>(options_.size)};
  // If this fails, on_closed() is called.
  (void)(*connection)->send({encode_frame(hello, token_.size()) + token_, {}});
  return absl::OkStatus();
}

// The effect depends on which connection was closed:
// - The incoming one: the rank is lost.
// - The outgoing one before kWelcome: the next address of the rank is tried.
// - The outgoing one otherwise: nothing can be sent to the rank any more.
void RankLinks::on_closed(const LinkPtr& link, const absl::Status& reason) {
  enum { kTryNext, kEndSends, kLost } next = kLost;
  int rank;
  absl::Status gone;
  {
    MutexLock lock(mutex_);
    link->closed = true;
    links_.erase(link);
    timers_.cancel(std::exchange(link->timer, 0));
    changed_.notify_all();
    rank = link->rank;
    // A connection that ends before kHello belongs to no rank.
    if (rank < 0) --unintroduced_;
    if (rank < 0 || closed_) return;
    Peer& other = peer(rank);
    gone = absl::UnavailableError(link->goodbye_received ? std::string("has left")
                                                         : absl::StrCat("is lost: ", reason.message()));
    if (link->outgoing) next = link->welcomed ? kEndSends : kTryNext;
    if (next == kTryNext) {
      // The rank is lost already: lose() may have closed this connection itself.
      if (other.lost) return;
      absl::StrAppend(&other.failures, "; ", link->transport, ": ", reason.message());
      if (is_local_shortage(reason)) other.shortage = true;
      other.state = Peer::State::kWanted;
      other.out = nullptr;
      find_locked();
    }
  }
  if (next == kEndSends) end_sends(rank, gone);
  if (next == kLost) lose(rank, gone);
}

// While the incoming connection is open, messages that the rank has sent may still arrive, and its kGoodbye,
// which says that it has left. So only sends fail at once. The incoming connection is closed after
// kDrainTimeout, and then the rank is lost.
void RankLinks::end_sends(int rank, const absl::Status& reason) {
  bool draining;
  {
    MutexLock lock(mutex_);
    Peer& other = peer(rank);
    if (closed_ || other.lost) return;
    other.state = Peer::State::kClosed;
    draining = other.in != nullptr && !other.in->closed;
    if (draining) {
      timers_.schedule(timers_.clock().now() + kDrainTimeout, [in = other.in, reason] {
        in->connection->close(absl::Status(reason.code(), absl::StrCat("it ", reason.message())));
      });
    }
  }
  if (draining) {
    observer_.on_out_closed(rank, reason);
  } else {
    lose(rank, reason);
  }
}

// `lost` is set first, under the lock: only one thread reports the rank, and frames that still arrive are
// dropped (on_frame). The connections are closed last; their on_closed() then finds `lost`.
void RankLinks::lose(int rank, const absl::Status& reason) {
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

// 1. Close the links for new connections and ranks.
// 2. Send kGoodbye on every connection, and close it after what is queued has been sent.
// 3. Wait until all connections have ended, for at most kFlushTimeout: a rank that reads nothing must not
//    delay this one.
// 4. Shut the transports down. No link is called afterwards.
void RankLinks::shutdown(const absl::Status& reason) {
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
    connection->close(reason, kFlushTimeout);
  }
  const absl::Time deadline = Clock::system().now() + kFlushTimeout;
  mutex_.lock();
  while (!links_.empty() && Clock::system().now() < deadline)
    changed_.wait_for(mutex_, deadline - Clock::system().now());
  mutex_.unlock();
  for (const auto& transport : transports_) transport->shutdown();
}

}  // namespace gradwire::collectives::cpu
