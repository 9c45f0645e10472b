#include "gradwire/tools/launch/rendezvous/client.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gradwire/base/error.h"
#include "gradwire/base/random_id.h"
#include "gradwire/tools/launch/io/fd.h"
#include "gradwire/tools/launch/rendezvous/record.h"

namespace gradwire::rendezvous {
namespace {

// Calls that wait are cut into slices, so that the thread notices in time what it is asked.
constexpr absl::Duration kSlice = absl::Milliseconds(200);
constexpr absl::Duration kCall = absl::Seconds(2);
constexpr absl::Duration kAfterError = absl::Milliseconds(100);
// What one call may take where nobody answers. Longer ones had a process that stood still, which says nothing of the
// store.
constexpr absl::Duration kLongestCall = absl::Seconds(8);
// No value of any key.
constexpr char kNothing[] = "?";

bool may_pass(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsResourceExhausted(status);
}

ClientOptions filled_in(ClientOptions options, Clock& clock) {
  if (options.node.node_id.empty()) options.node.node_id = absl::StrFormat("%016x", random_id());
  if (options.node.to_time_of_day == absl::ZeroDuration())
    options.node.to_time_of_day = absl::Now() - clock.now();
  return options;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RendezvousClient>> RendezvousClient::start(ClientOptions options,
                                                                          OpenStore open_store,
                                                                          Clock& clock) {
  options = filled_in(std::move(options), clock);
  GRADWIRE_RETURN_IF_ERROR(check(options.node));
  Descriptor event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event.valid()) return tools::errno_status("cannot make an eventfd", errno);
  return std::unique_ptr<RendezvousClient>(
      new RendezvousClient(std::move(options), std::move(open_store), clock, std::move(event)));
}

RendezvousClient::RendezvousClient(ClientOptions options, OpenStore opener, Clock& clock, Descriptor event)
    : options_(std::move(options)),
      open_store_(std::move(opener)),
      clock_(clock),
      event_(std::move(event)),
      machine_(options_.node, clock.now()),
      thread_([this] { run(); }) {}

RendezvousClient::~RendezvousClient() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

News RendezvousClient::news() {
  uint64_t count = 0;
  tools::read_retrying(event_.get(), &count, sizeof(count));
  MutexLock lock(mutex_);
  return news_;
}

bool RendezvousClient::done() {
  MutexLock lock(mutex_);
  return done_;
}

void RendezvousClient::ready() {
  say([](Rendezvous& machine, absl::Time now) { machine.ready(now); });
}

void RendezvousClient::workers_failed(Failure failure) {
  say([failure = std::move(failure)](Rendezvous& machine, absl::Time now) {
    machine.workers_failed(failure, now);
  });
}

void RendezvousClient::workers_done() {
  say([](Rendezvous& machine, absl::Time now) { machine.workers_done(now); });
}

void RendezvousClient::store_served(std::string host, int port) {
  say([address = Address{.host = std::move(host), .port = port}](Rendezvous& machine, absl::Time now) {
    machine.store_served(address, now);
  });
}

void RendezvousClient::leave(std::string reason) {
  say([reason = std::move(reason)](Rendezvous& machine, absl::Time now) { machine.leave(reason, now); });
}

void RendezvousClient::say(Say what) {
  MutexLock lock(mutex_);
  said_.push_back(std::move(what));
  changed_.notify_all();
}

void RendezvousClient::run() {
  if (const absl::Status opened = open(); !opened.ok()) machine_.lose_store(opened);
  while (!stopping() && !machine_.done()) {
    take_said();
    const absl::Time began = clock_.now();
    const absl::Status status = serve_once();
    if (!status.ok()) on_error(status, began);
    announce();
    if (!status.ok()) rest(kAfterError);
  }
  announce();
}

absl::Status RendezvousClient::open() {
  const absl::Time deadline = clock_.now() + options_.node.join_timeout;
  while (true) {
    take_said();
    if (machine_.news().kind == News::Kind::kEnded) return absl::CancelledError("left");
    absl::StatusOr<std::shared_ptr<store::Store>> opened =
        open_store_(std::clamp(deadline - clock_.now(), absl::ZeroDuration(), absl::Seconds(1)));
    if (opened.ok()) {
      store_ = *std::move(opened);
      return absl::OkStatus();
    }
    if (stopping()) return absl::CancelledError("stopped while looking for the store");
    if (!may_pass(opened.status())) return with_context(opened.status(), "cannot reach the job's store");
    if (clock_.now() >= deadline) {
      return absl::UnavailableError(absl::StrCat("cannot reach the job's store within ",
                                                 absl::FormatDuration(options_.node.join_timeout), ": ",
                                                 opened.status().message()));
    }
    rest(kAfterError);
  }
}

absl::Status RendezvousClient::serve_once() {
  const bool ended = machine_.news().kind == News::Kind::kEnded;
  if (!known_ && !ended) {
    GRADWIRE_ASSIGN_OR_RETURN(std::optional<std::string> bytes, read_now(kStateKey));
    take_in(std::move(bytes));
    return absl::OkStatus();
  }
  const Rendezvous::Wanted wanted = machine_.wanted(clock_.now());
  if (machine_.done()) return absl::OkStatus();
  if (wanted.beat) {
    const std::string key = beat_key(wanted.beat->id);
    GRADWIRE_RETURN_IF_ERROR(wanted.beat->value ? store_->try_set(key, *wanted.beat->value, kCall)
                                                : store_->try_delete_key(key, kCall).status());
    failing_since_.reset();
    machine_.beaten(clock_.now());
    return absl::OkStatus();
  }
  if (!wanted.look_at.empty()) return look(wanted.look_at);
  if (wanted.change) return change(*wanted.change);
  // A slice may be long for what is due soon, and time may be a test's.
  const absl::Duration patience = std::clamp(wanted.wake - clock_.now(), absl::ZeroDuration(), kSlice);
  // A node of its own changes the record alone, and need not watch it: the launcher's word comes at once. Should another
  // come, the next change says so.
  const bool alone = options_.node.settings.max_nodes == 1;
  if (machine_.news().kind != News::Kind::kEnded && !alone) return watch(patience);
  announce();
  rest(std::max(patience, absl::Milliseconds(1)));
  return absl::OkStatus();
}

// In one pass: who is watched is few, however many nodes there are.
absl::Status RendezvousClient::look(const std::vector<std::string>& ids) {
  std::vector<std::optional<std::string>> beats;
  for (const std::string& id : ids) {
    if (stopping()) return absl::CancelledError("stopped");
    GRADWIRE_ASSIGN_OR_RETURN(std::optional<std::string> beat, read_now(beat_key(id)));
    beats.push_back(std::move(beat));
  }
  machine_.looked(beats, clock_.now());
  return absl::OkStatus();
}

absl::Status RendezvousClient::change(const Rendezvous::Wanted::Change& change) {
  GRADWIRE_ASSIGN_OR_RETURN(std::string now_there,
                            store_->try_compare_set(kStateKey, change.expected, change.desired, kCall));
  if (now_there == change.expected) {
    // Nothing has changed it, and yet it did not take effect: so it is missing.
    known_ = false;
    return absl::OkStatus();
  }
  take_in(std::move(now_there));
  return absl::OkStatus();
}

absl::Status RendezvousClient::watch(absl::Duration patience) {
  const absl::Time began = clock_.now();
  absl::StatusOr<std::string> bytes = store_->try_watch(kStateKey, bytes_.value_or(""), patience);
  // The end of the slice; or no answer, and much later.
  if (absl::IsDeadlineExceeded(bytes.status()) && clock_.now() - began < patience + kCall)
    return absl::OkStatus();
  GRADWIRE_RETURN_IF_ERROR(bytes.status());
  take_in(*std::move(bytes));
  return absl::OkStatus();
}

// A get cannot tell a missing key from a store that is slow to answer; a compare_set that changes nothing can.
absl::StatusOr<std::optional<std::string>> RendezvousClient::read_now(const std::string& key) {
  absl::StatusOr<std::string> value = store_->try_compare_set(key, kNothing, kNothing, kCall);
  GRADWIRE_RETURN_IF_ERROR(value.status());
  failing_since_.reset();
  if (*value == kNothing) return std::nullopt;
  return *std::move(value);
}

void RendezvousClient::take_in(std::optional<std::string> bytes) {
  failing_since_.reset();
  known_ = true;
  bytes_ = std::move(bytes);
  machine_.read(bytes_ ? std::optional<absl::string_view>(*bytes_) : std::nullopt, clock_.now());
}

void RendezvousClient::on_error(const absl::Status& status, absl::Time began) {
  known_ = false;
  const absl::Time now = clock_.now();
  if (!failing_since_) failing_since_ = std::max(began, now - kLongestCall);
  if (machine_.news().kind == News::Kind::kEnded || !may_pass(status)) {
    machine_.lose_store(with_context(status, "the job's store is lost"));
  } else if (now - *failing_since_ >= options_.store_timeout) {
    machine_.lose_store(absl::UnavailableError(
        absl::StrCat("the job's store is lost: it could not be reached for ",
                     absl::FormatDuration(options_.store_timeout), ": ", status.message())));
  }
}

void RendezvousClient::take_said() {
  std::vector<Say> said;
  {
    MutexLock lock(mutex_);
    said.swap(said_);
  }
  for (const Say& what : said) what(machine_, clock_.now());
}

void RendezvousClient::announce() {
  {
    MutexLock lock(mutex_);
    const News& now = machine_.news();
    if (now.kind == news_.kind && now.round == news_.round && machine_.done() == done_) return;
    news_ = now;
    done_ = machine_.done();
  }
  const uint64_t one = 1;
  tools::write_retrying(event_.get(), &one, sizeof(one));
}

void RendezvousClient::rest(absl::Duration time) {
  MutexLock lock(mutex_);
  if (!stopping_ && said_.empty()) changed_.wait_for(mutex_, time);
}

bool RendezvousClient::stopping() {
  MutexLock lock(mutex_);
  return stopping_;
}

}  // namespace gradwire::rendezvous
