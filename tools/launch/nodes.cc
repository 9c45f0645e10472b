#include "tools/launch/nodes.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/error.h"
#include "tools/launch/nodes_wire.h"

namespace gradwire::tools {
namespace {

// Calls that wait are cut into slices, so that the thread notices in time what it is asked.
constexpr absl::Duration kSlice = absl::Milliseconds(200);
constexpr absl::Duration kCall = absl::Seconds(5);
constexpr absl::Duration kBeat = absl::Seconds(2);
constexpr absl::Duration kSilence = absl::Seconds(60);
// After a failure node 0 keeps the store for the others to learn of it.
constexpr absl::Duration kLinger = absl::Seconds(5);
constexpr char kFailedKey[] = "launch/failed";

std::string node_key(int rank) { return absl::StrCat("launch/node/", rank); }
std::string beat_key(int rank) { return absl::StrCat("launch/beat/", rank); }
std::string left_key(int rank) { return absl::StrCat("launch/left/", rank); }

}  // namespace

absl::StatusOr<std::unique_ptr<NodeGroup>> NodeGroup::start(Options options, OpenStore open_store,
                                                            Clock& clock) {
  Fd event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event.valid()) return errno_status("cannot make an eventfd", errno);
  return std::unique_ptr<NodeGroup>(
      new NodeGroup(std::move(options), std::move(open_store), clock, std::move(event)));
}

NodeGroup::NodeGroup(Options options, OpenStore open_store, Clock& clock, Fd event)
    : options_(std::move(options)),
      open_store_(std::move(open_store)),
      clock_(clock),
      event_(std::move(event)),
      thread_([this] { run(); }) {}

NodeGroup::~NodeGroup() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  thread_.join();
}

NodeGroup::News NodeGroup::news() {
  uint64_t count = 0;
  read_retrying(event_.get(), &count, sizeof(count));
  MutexLock lock(mutex_);
  return news_;
}

void NodeGroup::publish(const Failure& failure) {
  MutexLock lock(mutex_);
  if (!outgoing_) outgoing_ = failure;
}

void NodeGroup::leave() {
  MutexLock lock(mutex_);
  leaving_ = true;
}

void NodeGroup::announce(std::function<void(News&)> change) {
  {
    MutexLock lock(mutex_);
    change(news_);
  }
  const uint64_t one = 1;
  write_retrying(event_.get(), &one, sizeof(one));
}

bool NodeGroup::stopping() {
  MutexLock lock(mutex_);
  return stopping_;
}

void NodeGroup::run() {
  const absl::StatusOr<Joined> joined = join();
  announce([&](News& news) { news.joined = joined; });
  if (joined.ok()) {
    while (!stopping() && serve_once()) {
    }
  }
  announce([](News& news) { news.done = true; });
}

absl::StatusOr<NodeGroup::Joined> NodeGroup::join() {
  const absl::Time deadline = clock_.now() + options_.join_timeout;
  GRADWIRE_RETURN_IF_ERROR(open_and_enter(deadline));
  std::vector<std::string> keys;
  for (int rank = 0; rank < options_.nnodes; ++rank) keys.push_back(node_key(rank));
  while (true) {
    const absl::Status all_there = store_->try_wait(keys, kSlice);
    if (all_there.ok()) return read_nodes();
    if (!absl::IsDeadlineExceeded(all_there)) return with_context(all_there, "the nodes cannot meet");
    if (stopping()) return absl::CancelledError("stopped while the nodes were meeting");
    if (clock_.now() >= deadline) break;
  }
  std::vector<int> missing;
  for (int rank = 0; rank < options_.nnodes; ++rank) {
    if (!store_->try_get(node_key(rank), absl::ZeroDuration()).ok()) missing.push_back(rank);
  }
  constexpr size_t kNamed = 20;
  const size_t named = std::min(missing.size(), kNamed);
  return absl::DeadlineExceededError(absl::StrCat(
      "of ", options_.nnodes, " nodes ", missing.size(), " did not come within ",
      absl::FormatDuration(options_.join_timeout), ": node rank ",
      absl::StrJoin(missing.begin(), missing.begin() + named, ", "), missing.size() > named ? ", ..." : "",
      "; start a launcher with that --node_rank on each"));
}

absl::Status NodeGroup::open_and_enter(absl::Time deadline) {
  while (true) {
    absl::StatusOr<std::shared_ptr<store::Store>> opened =
        open_store_(std::min(absl::Seconds(1), deadline - clock_.now()));
    if (opened.ok()) {
      store_ = *std::move(opened);
      break;
    }
    if (stopping()) return absl::CancelledError("stopped while looking for node 0's launcher");
    const bool may_come = absl::IsUnavailable(opened.status()) || absl::IsDeadlineExceeded(opened.status());
    if (!may_come || clock_.now() >= deadline) {
      return with_context(opened.status(), "cannot reach the launcher of node 0");
    }
  }
  const std::string mine = encode_node({options_.self, options_.run_id});
  // Two launchers of one rank may say the same of themselves; the counter tells them apart.
  GRADWIRE_ASSIGN_OR_RETURN(const int64_t comers,
                            store_->try_add(absl::StrCat("launch/comers/", options_.node_rank), 1, kCall));
  if (comers > 1) {
    const absl::StatusOr<std::string> other = store_->try_get(node_key(options_.node_rank), kSlice);
    const absl::StatusOr<NodeRecord> record = decode_node(other.ok() ? *other : "");
    return absl::FailedPreconditionError(
        absl::StrCat("node rank ", options_.node_rank, " has been taken",
                     record.ok() ? absl::StrCat(" by a launcher on ", record->node.host) : "",
                     ": give each node a --node_rank of its own"));
  }
  return store_->try_set(node_key(options_.node_rank), mine, kCall);
}

absl::StatusOr<NodeGroup::Joined> NodeGroup::read_nodes() {
  Joined joined;
  for (int rank = 0; rank < options_.nnodes; ++rank) {
    GRADWIRE_ASSIGN_OR_RETURN(const std::string value, store_->try_get(node_key(rank), kCall));
    GRADWIRE_ASSIGN_OR_RETURN(NodeRecord record, decode_node(value));
    if (rank == 0) joined.run_id = record.run_id;
    joined.nodes.push_back(std::move(record.node));
  }
  heard_.assign(options_.nnodes, Heard{.beat = "", .at = clock_.now()});
  return joined;
}

bool NodeGroup::serve_once() {
  std::optional<Failure> outgoing, known;
  bool leaving = false;
  {
    MutexLock lock(mutex_);
    outgoing = std::exchange(outgoing_, std::nullopt);
    known = news_.failed;
    leaving = leaving_;
  }
  absl::Status status;
  if (outgoing) status = store_->try_compare_set(kFailedKey, "", encode_failure(*outgoing), kCall).status();
  if (status.ok() && clock_.now() >= next_beat_) {
    next_beat_ = clock_.now() + kBeat;
    status = store_->try_set(beat_key(options_.node_rank), absl::StrCat(++beats_), kCall);
    if (status.ok() && options_.node_rank == 0) status = check_beats();
  }
  if (status.ok() && !known) {
    const absl::StatusOr<std::string> value = store_->try_get(kFailedKey, kSlice);
    absl::StatusOr<Failure> failure = value.ok() ? decode_failure(*value) : value.status();
    if (failure.ok()) {
      announce([&](News& news) { news.failed = *failure; });
    } else if (!absl::IsDeadlineExceeded(failure.status())) {
      status = failure.status();
    }
  } else if (status.ok()) {
    // What is waited for now is the end of this node's workers, or the others'.
    static_cast<void>(
        store_->try_wait({left_key(options_.node_rank == 0 ? options_.nnodes - 1 : 0)}, kSlice));
  }
  if (!status.ok()) {
    const Failure lost{.exit_code = 1,
                       .description = absl::StrCat("the job's store is lost: ", status.message())};
    announce([&](News& news) {
      if (!news.failed) news.failed = lost;
    });
    return false;
  }
  if (!leaving) return true;
  static_cast<void>(store_->try_set(left_key(options_.node_rank), "", kCall));
  if (options_.node_rank != 0) return false;
  if (known && done_by_ == absl::InfiniteFuture()) done_by_ = clock_.now() + kLinger;
  return !all_left() && clock_.now() < done_by_;
}

bool NodeGroup::all_left() {
  std::vector<std::string> keys;
  for (int rank = 0; rank < options_.nnodes; ++rank) keys.push_back(left_key(rank));
  return store_->try_wait(keys, absl::ZeroDuration()).ok();
}

absl::Status NodeGroup::check_beats() {
  for (int rank = 1; rank < options_.nnodes; ++rank) {
    const absl::StatusOr<std::string> beat = store_->try_get(beat_key(rank), absl::ZeroDuration());
    Heard& heard = heard_[rank];
    if (beat.ok() && *beat != heard.beat) heard = {*beat, clock_.now()};
    if (clock_.now() - heard.at < kSilence) continue;
    if (store_->try_get(left_key(rank), absl::ZeroDuration()).ok()) continue;
    const Failure lost{.exit_code = 1,
                       .description = absl::StrCat("the launcher of node ", rank, " has not been heard for ",
                                                   absl::FormatDuration(kSilence))};
    return store_->try_compare_set(kFailedKey, "", encode_failure(lost), kCall).status();
  }
  return absl::OkStatus();
}

}  // namespace gradwire::tools
