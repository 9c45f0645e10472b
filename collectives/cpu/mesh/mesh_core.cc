#include "gradwire/collectives/cpu/mesh/mesh_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/random_id.h"
#include "gradwire/transport/shm/shm_transport.h"
#include "gradwire/transport/tcp/tcp_transport.h"

namespace gradwire::collectives::cpu {
namespace {

constexpr char kTokenKey[] = "mesh/token";
// What was sent before a shutdown leaves within this time, or not at all.
constexpr absl::Duration kFlush = absl::Seconds(2);
// For callbacks of who uses the mesh, and for the one that looks for ranks.
constexpr int kThreads = 2;

}  // namespace

MeshCore::MeshCore(Mesh::Options options)
    : options_(std::move(options)), matcher_(options_.rank, options_.size) {
  MutexLock lock(mutex_);
  peers_.resize(static_cast<std::size_t>(options_.size));
}

MeshCore::~MeshCore() { shutdown(); }

std::string MeshCore::key_of(int rank) { return absl::StrCat("mesh/rank/", rank); }

absl::Status MeshCore::check(int rank, Span data) const {
  if (rank < 0 || rank >= options_.size)
    return absl::InvalidArgumentError(
        absl::StrCat("there is no rank ", rank, " in a world of ", options_.size));
  if (data.size > options_.limits.max_buffer_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("a message of ", data.size, " bytes is over the limit of ",
                                                   options_.limits.max_buffer_bytes));
  }
  return absl::OkStatus();
}

std::string MeshCore::name_of(uint64_t channel, int rank) {
  MutexLock lock(mutex_);
  return matcher_.name_of(channel, rank);
}

absl::Status MeshCore::start() {
  GRADWIRE_ASSIGN_OR_RETURN(loop_, transport::EventLoop::create());
  ThreadPool::Options threads;
  threads.num_threads = kThreads;
  threads.name = "mesh";
  threads.poller = loop_;
  executor_ = std::make_shared<ThreadPool>(threads);
  timers_ = std::make_unique<TimerQueue>();
  GRADWIRE_RETURN_IF_ERROR(make_transports());
  return join_world();
}

absl::Status MeshCore::make_transports() {
  // What no frame has, a stranger cannot make this rank hold.
  Limits limits = options_.limits;
  limits.max_header_bytes = std::min(limits.max_header_bytes, kMaxHeaderBytes);
  limits.max_buffers = 1;
  const bool chosen = !options_.transports.empty();
  absl::Status shm_works;
  for (const std::string& name : chosen ? options_.transports : std::vector<std::string>{"shm", "tcp"}) {
    if (name == "shm") {
      shm_works = transport::probe_shm();
      if (!shm_works.ok()) {
        log(LogLevel::kWarning, "shared memory between ranks does not work here: ", shm_works.message());
        continue;
      }
      transport::ShmOptions shm;
      shm.limits = limits;
      transports_.push_back(transport::make_shm_transport(std::move(shm), loop_));
    } else if (name == "tcp") {
      transport::TcpOptions tcp;
      tcp.limits = limits;
      transports_.push_back(transport::make_tcp_transport(std::move(tcp), loop_));
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown transport \"", name, "\"; there are \"shm\" and \"tcp\""));
    }
  }
  if (transports_.empty()) return with_context(shm_works, "the transport \"shm\" does not work here");
  return absl::OkStatus();
}

// Numbered steps: 1. agree on a secret; 2. listen; 3. say where.
absl::Status MeshCore::join_world() {
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
        transport->listen(
            [this, name = transport->name()](const std::shared_ptr<transport::Connection>& connection) {
              return accept(name, connection);
            }));
    absl::StrAppend(&record, transport->name(), " ", address, "\n");
  }
  return options_.store->try_set(key_of(options_.rank), record, options_.connect_timeout);
}

void MeshCore::watch_locked(absl::Time deadline) {
  if (deadline >= alarm_) return;
  alarm_ = deadline;
  timers_->schedule(deadline, [this] { expire(); });
}

void MeshCore::expire() {
  std::vector<std::pair<uint64_t, absl::Status>> sends;
  std::vector<std::pair<uint64_t, absl::Status>> receives;
  {
    MutexLock lock(mutex_);
    const absl::Time now = timers_->clock().now();
    absl::Time next = absl::InfiniteFuture();
    for (const auto& [id, send] : sends_) {
      if (send->deadline <= now) {
        sends.emplace_back(id, absl::DeadlineExceededError(absl::StrCat(
                                   matcher_.name_of(send->channel, send->dst), " has not taken a message of ",
                                   send->data.size, " bytes (tag ", send->tag, ") in time")));
      } else {
        next = std::min(next, send->deadline);
      }
    }
    for (const auto& [id, receive] : receives_) {
      if (receive->deadline <= now) {
        const std::string from =
            receive->src == kAnyRank ? "any rank" : matcher_.name_of(receive->channel, receive->src);
        receives.emplace_back(
            id, absl::DeadlineExceededError(
                    absl::StrCat("no message (tag ", receive->tag, ") has come from ", from, " in time")));
      } else {
        next = std::min(next, receive->deadline);
      }
    }
    alarm_ = absl::InfiniteFuture();
    watch_locked(next);
  }
  for (auto& [id, late] : sends) end_send(id, std::move(late));
  for (auto& [id, late] : receives) end_receive(id, std::move(late));
}

void MeshCore::end_channel(uint64_t channel, const absl::Status& reason, bool forget) {
  Todos todos;
  std::vector<uint64_t> sends;
  {
    MutexLock lock(mutex_);
    Matcher::Actions actions;
    if (forget) {
      matcher_.forget(channel, actions);
    } else {
      matcher_.abort(channel, reason, actions);
    }
    todos = take_locked(std::move(actions));
    for (const auto& [id, send] : sends_) {
      if (send->channel == channel) sends.push_back(id);
    }
  }
  perform(std::move(todos));
  for (const uint64_t id : sends) end_send(id, reason);
}

void MeshCore::abort(uint64_t channel, const absl::Status& reason) { end_channel(channel, reason, false); }

void MeshCore::forget(uint64_t channel) {
  end_channel(channel, absl::CancelledError("the channel is not used any more"), true);
}

void MeshCore::name_ranks(uint64_t channel, absl::flat_hash_map<int, int> names) {
  MutexLock lock(mutex_);
  matcher_.name_ranks(channel, std::move(names));
}

void MeshCore::shutdown() {
  std::call_once(shut_down_, [this] {
    const absl::Status reason = absl::CancelledError("the mesh was shut down");
    std::vector<uint64_t> sends;
    std::vector<uint64_t> receives;
    std::vector<std::shared_ptr<transport::Connection>> connections;
    {
      MutexLock lock(mutex_);
      closed_ = true;
      for (const auto& [id, send] : sends_) sends.push_back(id);
      for (const auto& [id, receive] : receives_) receives.push_back(id);
      for (const auto& link : links_) {
        if (link->connection != nullptr) connections.push_back(link->connection);
      }
    }
    for (const uint64_t id : sends) end_send(id, reason);
    for (const uint64_t id : receives) end_receive(id, reason);
    for (const auto& connection : connections) {
      (void)connection->send({encode_frame({.kind = FrameKind::kGoodbye}), {}});
      connection->close(reason, kFlush);
    }
    const absl::Time deadline = Clock::system().now() + kFlush;
    mutex_.lock();
    while (!links_.empty() && Clock::system().now() < deadline)
      changed_.wait_for(mutex_, deadline - Clock::system().now());
    mutex_.unlock();
    for (const auto& transport : transports_) transport->shutdown();
    if (executor_ != nullptr) executor_->shutdown();
    if (timers_ != nullptr) timers_->shutdown();
    if (loop_ != nullptr) {
      loop_->post([loop = loop_.get()] { loop->end_in_loop(); });
      loop_->run_until([this] { return loop_->ended(); });
    }
  });
}

}  // namespace gradwire::collectives::cpu
