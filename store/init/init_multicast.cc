#include <algorithm>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/fork.h"
#include "gradwire/base/process/host.h"
#include "gradwire/base/process/start_thread.h"
#include "gradwire/base/random_id.h"
#include "gradwire/store/formation/multicast_election.h"
#include "gradwire/store/init/init_internal.h"
#include "gradwire/store/init/multicast_socket.h"
#include "gradwire/store/tcp_store.h"

namespace gradwire::store {
namespace {

constexpr absl::Duration kAnnounceInterval = absl::Milliseconds(100);
// How long an announced store may take to answer before it counts as gone.
constexpr absl::Duration kDialTime = absl::Seconds(5);

// Announces this process and receives the announcements of the others, on a thread of its own, until
// destroyed. It goes on after this process has decided, because the others may still need its announcements.
// Thread-safe.
class Announcer {
 public:
  Announcer(std::unique_ptr<MulticastSocket> socket, const InitRequest& request, int port)
      : socket_(std::move(socket)),
        election_(request.options.group_name, request.world_size, random_id(), port, clock_.now()),
        thread_(value_or_throw(start_thread("announcer", [this] { run(); }))) {}

  ~Announcer() {
    if (!mark_.here()) {
      leak_after_fork(thread_);
      return;
    }
    {
      MutexLock lock(mutex_);
      stopping_ = true;
    }
    socket_->wake();
    thread_.join();
  }

  absl::StatusOr<MulticastElection::Decision> wait_for_decision(const InitRequest& request) {
    MutexLock lock(mutex_);
    while (true) {
      if (const auto other = election_.contradiction(); other.has_value()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "world size mismatch: a process at ", other->host, " reports world_size=", other->world_size,
            ", this process, on ", host_name(), ", reports world_size=", request.world_size));
      }
      const absl::Time now = clock_.now();
      if (auto decision = election_.decide(now); decision.has_value()) return *decision;
      if (now >= request.deadline) {
        return absl::DeadlineExceededError(
            absl::StrCat("received announcements of ", election_.known(), " of ", request.world_size,
                         " processes (this one included) on the local network within ",
                         absl::FormatDuration(request.options.timeout)));
      }
      clock_.wait_until(mutex_, changed_, std::min(request.deadline, now + kAnnounceInterval));
    }
  }

  void forget(uint64_t candidate) {
    MutexLock lock(mutex_);
    election_.forget(candidate);
  }

  // From now on announces this process only in answer to other announcements.
  void settle() {
    MutexLock lock(mutex_);
    election_.settle();
    settled_ = true;
  }

 private:
  void run() {
    absl::Time next = clock_.now();
    bool answer_due = true;
    while (true) {
      std::string announcement;
      bool stopping = false;
      {
        MutexLock lock(mutex_);
        stopping = stopping_;
        if (clock_.now() >= next && (!settled_ || answer_due)) announcement = election_.announcement();
        // Announce once more before leaving: a member that has just arrived must learn of a world size
        // mismatch.
        if (stopping && !settled_) announcement = election_.announcement();
      }
      if (!announcement.empty()) {
        socket_->send(announcement);
        next = clock_.now() + kAnnounceInterval;
        answer_due = false;
      }
      if (stopping) return;
      const absl::Duration pause = answer_due || !is_settled() ? next - clock_.now() : absl::Seconds(10);
      std::optional<MulticastSocket::Datagram> datagram = socket_->receive(pause);
      if (!datagram.has_value()) continue;
      MutexLock lock(mutex_);
      answer_due |= election_.observe(datagram->bytes, datagram->sender, clock_.now());
      changed_.notify_all();
    }
  }

  bool is_settled() {
    MutexLock lock(mutex_);
    return settled_;
  }

  const ProcessMark mark_;
  Clock& clock_ = Clock::system();
  const std::unique_ptr<MulticastSocket> socket_;

  Mutex mutex_;
  CondVar changed_;
  MulticastElection election_ ABSL_GUARDED_BY(mutex_);
  bool settled_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;  // Last member: the thread uses the others.
};

// A group's store, on the process that hosts it, with its announcer. Newcomers can find the store as long as
// it exists; processes that exceed the world size get the error from it.
struct HostedStore {
  std::shared_ptr<Store> store;
  std::unique_ptr<Announcer> announcer;
};

}  // namespace

absl::StatusOr<Rendezvous> init_multicast(const InitRequest& request) {
  GRADWIRE_ASSIGN_OR_RETURN(std::unique_ptr<MulticastSocket> socket,
                            MulticastSocket::open(request.url.endpoint));
  // Every process opens a store; all but one are closed again.
  // Its port is in the announcements, so it must exist before the election.
  GRADWIRE_ASSIGN_OR_RETURN(
      std::shared_ptr<TcpStore> own,
      TcpStore::open(host_name(), 0,
                     {.is_master = true, .timeout = request.left(), .security = request.options.security}));
  GRADWIRE_ASSIGN_OR_RETURN(std::unique_ptr<Announcer> announcer,
                            make_with_threads<Announcer>(std::move(socket), request, own->port()));
  while (true) {
    GRADWIRE_ASSIGN_OR_RETURN(const MulticastElection::Decision decision,
                              announcer->wait_for_decision(request));
    if (decision.self) {
      announcer->settle();
      auto hosted = std::make_shared<HostedStore>(HostedStore{own, std::move(announcer)});
      return join_group(std::shared_ptr<Store>(hosted, own.get()), request);
    }
    absl::StatusOr<std::shared_ptr<TcpStore>> other = TcpStore::open(
        decision.endpoint.host, decision.endpoint.port,
        {.timeout = std::min(request.left(), kDialTime), .security = request.options.security});
    absl::Status status = other.status();
    if (other.ok()) {
      absl::StatusOr<Rendezvous> joined = join_group(*std::move(other), request);
      // The store may belong to a group that has just ended, and close while this process waits in it for the
      // next group. Then elect again.
      if (!absl::IsUnavailable(joined.status())) return joined;
      status = joined.status();
    }
    if (Clock::system().now() >= request.deadline) return status;
    announcer->forget(decision.candidate);
  }
}

}  // namespace gradwire::store
