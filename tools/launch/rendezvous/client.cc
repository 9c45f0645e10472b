#include "gradwire/tools/launch/rendezvous/client.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gradwire/base/error.h"
#include "gradwire/base/process/start_thread.h"
#include "gradwire/base/random_id.h"
#include "gradwire/tools/launch/io/fd.h"
#include "gradwire/tools/launch/rendezvous/record.h"

namespace gradwire::rendezvous {
namespace {

// A wait is split into slices of this length, so that the thread notices reports of the launcher in time.
constexpr absl::Duration kSlice = absl::Milliseconds(200);
constexpr absl::Duration kCallTimeout = absl::Seconds(2);
constexpr absl::Duration kRetryInterval = absl::Milliseconds(100);
// The longest time that a call can take if the store does not answer. A longer call means that this process
// was paused, which says nothing about the store.
constexpr absl::Duration kMaxCallTime = absl::Seconds(8);
// Not the value of any key.
constexpr char kNoValue[] = "?";

}  // namespace

bool is_temporary(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsResourceExhausted(status);
}

absl::Duration StoreDriver::step() {
  const absl::Time start = clock_.now();
  const absl::StatusOr<absl::Duration> pause = try_step();
  if (pause.ok()) return *pause;
  on_error(pause.status(), start);
  return kRetryInterval;
}

// After an error `known_` is false, and the next step reads the record first. So it does not matter whether
// a change whose answer was lost has taken effect: the state machine decides from the record alone.
absl::StatusOr<absl::Duration> StoreDriver::try_step() {
  if (!known_ && !ended()) {
    GRADWIRE_ASSIGN_OR_RETURN(std::optional<std::string> bytes, read_now(kStateKey));
    deliver(std::move(bytes));
    return absl::ZeroDuration();
  }
  const Rendezvous::Wanted wanted = machine_.wanted(clock_.now());
  if (machine_.done()) return absl::ZeroDuration();
  if (wanted.beat) {
    const std::string key = beat_key(wanted.beat->id);
    GRADWIRE_RETURN_IF_ERROR(wanted.beat->value ? store_->try_set(key, *wanted.beat->value, kCallTimeout)
                                                : store_->try_delete_key(key, kCallTimeout).status());
    failing_since_.reset();
    machine_.on_beat_written(clock_.now());
  } else if (!wanted.beats_to_read.empty()) {
    GRADWIRE_RETURN_IF_ERROR(read_beats(wanted.beats_to_read));
  } else if (wanted.change) {
    GRADWIRE_RETURN_IF_ERROR(change(*wanted.change));
  } else {
    // Do not wait longer than until wanted.wake. In a test the clock may be simulated.
    const absl::Duration timeout = std::clamp(wanted.wake - clock_.now(), absl::ZeroDuration(), kSlice);
    // A job with one node need not watch the record, because only this node changes it. A report of the
    // launcher ends the pause at once. If another node joined by mistake, the next change would show it.
    if (ended() || alone_) return std::max(timeout, absl::Milliseconds(1));
    GRADWIRE_RETURN_IF_ERROR(watch(timeout));
  }
  return absl::ZeroDuration();
}

// Reads all beats in one pass. A node watches few others, however many nodes the job has.
absl::Status StoreDriver::read_beats(const std::vector<std::string>& ids) {
  std::vector<std::optional<std::string>> beats;
  for (const std::string& id : ids) {
    if (interrupted_()) return absl::CancelledError("stopped");
    GRADWIRE_ASSIGN_OR_RETURN(std::optional<std::string> beat, read_now(beat_key(id)));
    beats.push_back(std::move(beat));
  }
  machine_.on_beats_read(beats, clock_.now());
  return absl::OkStatus();
}

absl::Status StoreDriver::change(const Rendezvous::Wanted::Change& change) {
  GRADWIRE_ASSIGN_OR_RETURN(
      std::string current, store_->try_compare_set(kStateKey, change.expected, change.desired, kCallTimeout));
  if (current == change.expected) {
    // compare_set returned the expected value but did not set the new one: the key is missing. Read again.
    known_ = false;
    return absl::OkStatus();
  }
  deliver(std::move(current));
  return absl::OkStatus();
}

absl::Status StoreDriver::watch(absl::Duration timeout) {
  const absl::Time start = clock_.now();
  absl::StatusOr<std::string> bytes = store_->try_watch(kStateKey, bytes_.value_or(""), timeout);
  // The slice ended. (If the store did not answer, DeadlineExceeded comes much later.)
  if (absl::IsDeadlineExceeded(bytes.status()) && clock_.now() - start < timeout + kCallTimeout)
    return absl::OkStatus();
  GRADWIRE_RETURN_IF_ERROR(bytes.status());
  deliver(*std::move(bytes));
  return absl::OkStatus();
}

// A get cannot distinguish a missing key from a store that is slow to answer. A compare_set that changes
// nothing can.
absl::StatusOr<std::optional<std::string>> StoreDriver::read_now(const std::string& key) {
  absl::StatusOr<std::string> value = store_->try_compare_set(key, kNoValue, kNoValue, kCallTimeout);
  GRADWIRE_RETURN_IF_ERROR(value.status());
  failing_since_.reset();
  if (*value == kNoValue) return std::nullopt;
  return *std::move(value);
}

void StoreDriver::deliver(std::optional<std::string> bytes) {
  failing_since_.reset();
  known_ = true;
  bytes_ = std::move(bytes);
  machine_.read(bytes_ ? std::optional<absl::string_view>(*bytes_) : std::nullopt, clock_.now());
}

// The store is lost after store_timeout without any success, or at once after an error that no retry can
// repair. The time begins with the failing call, but a process that was paused during the call must not
// count the pause. After the end nothing important is left to write, so the first error is enough.
void StoreDriver::on_error(const absl::Status& status, absl::Time start) {
  known_ = false;
  const absl::Time now = clock_.now();
  if (!failing_since_) failing_since_ = std::max(start, now - kMaxCallTime);
  if (ended() || !is_temporary(status)) {
    machine_.on_store_lost(with_context(status, "the job's store is lost"));
  } else if (now - *failing_since_ >= store_timeout_) {
    machine_.on_store_lost(
        absl::UnavailableError(absl::StrCat("the job's store is lost: it could not be reached for ",
                                            absl::FormatDuration(store_timeout_), ": ", status.message())));
  }
}

namespace {

constexpr absl::Duration kReconnectInterval = absl::Milliseconds(100);

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
  if (!event.valid()) return errno_status("cannot create an eventfd", errno);
  return made_with_threads([&] {
    return std::unique_ptr<RendezvousClient>(
        new RendezvousClient(std::move(options), std::move(open_store), clock, std::move(event)));
  });
}

RendezvousClient::RendezvousClient(ClientOptions options, OpenStore opener, Clock& clock, Descriptor event)
    : options_(std::move(options)),
      open_store_(std::move(opener)),
      clock_(clock),
      event_(std::move(event)),
      driver_(
          options_.node, options_.store_timeout, [this] { return stopping(); }, clock),
      thread_(value_or_throw(start_thread("rendezvous", [this] { run(); }))) {}

RendezvousClient::~RendezvousClient() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

RendezvousUpdate RendezvousClient::update() {
  uint64_t count = 0;
  tools::read_retrying(event_.get(), &count, sizeof(count));
  MutexLock lock(mutex_);
  return update_;
}

bool RendezvousClient::done() {
  MutexLock lock(mutex_);
  return done_;
}

ProgressState RendezvousClient::wait_state() {
  MutexLock lock(mutex_);
  return update_.wait;
}

void RendezvousClient::post(Report report) {
  MutexLock lock(mutex_);
  reports_.push_back(std::move(report));
  changed_.notify_all();
}

// The thread of the client. Only this thread uses the driver and the state machine. The launcher posts
// reports, which are applied between two steps, and reads the newest update.
void RendezvousClient::run() {
  if (const absl::Status opened = open(); !opened.ok()) driver_.machine().on_store_lost(opened);
  while (!stopping() && !driver_.machine().done()) {
    deliver_reports();
    const absl::Duration time = driver_.step();
    publish_update();
    if (time > absl::ZeroDuration()) pause(time);
  }
  publish_update();
}

// Retries until join_timeout, because the launcher that serves the store may start later. Reports are
// delivered meanwhile, so that a signal ends the wait. A single attempt takes at most a second, for the same
// reason.
absl::Status RendezvousClient::open() {
  const absl::Time deadline = clock_.now() + options_.node.join_timeout;
  while (true) {
    deliver_reports();
    if (driver_.ended()) return absl::CancelledError("left");
    absl::StatusOr<std::shared_ptr<store::Store>> opened =
        open_store_(std::clamp(deadline - clock_.now(), absl::ZeroDuration(), absl::Seconds(1)));
    if (opened.ok()) {
      driver_.use(*std::move(opened));
      return absl::OkStatus();
    }
    if (stopping()) return absl::CancelledError("stopped while connecting to the store");
    if (!is_temporary(opened.status())) return with_context(opened.status(), "cannot reach the job's store");
    if (clock_.now() >= deadline) {
      return absl::UnavailableError(absl::StrCat("cannot reach the job's store within ",
                                                 absl::FormatDuration(options_.node.join_timeout), ": ",
                                                 opened.status().message()));
    }
    pause(kReconnectInterval);
  }
}

void RendezvousClient::deliver_reports() {
  std::vector<Report> reports;
  {
    MutexLock lock(mutex_);
    reports.swap(reports_);
  }
  for (const Report& report : reports) report(driver_.machine(), clock_.now());
}

// The eventfd is written after `update_` has changed, and update() reads the eventfd before it reads
// `update_`. So a change between these two reads makes the descriptor readable again, and none is missed.
void RendezvousClient::publish_update() {
  {
    MutexLock lock(mutex_);
    const Rendezvous& machine = driver_.machine();
    const RendezvousUpdate& now = machine.update();
    // The launcher asks for it when it shows it. So a change of it is not an event.
    update_.wait = now.wait;
    if (now.kind == update_.kind && now.round == update_.round && machine.done() == done_) return;
    update_ = now;
    done_ = machine.done();
  }
  const uint64_t one = 1;
  write_retrying(event_.get(), &one, sizeof(one));
}

// A report that was posted before the lock was taken is found in `reports_`; a later one wakes the wait.
void RendezvousClient::pause(absl::Duration time) {
  MutexLock lock(mutex_);
  if (!stopping_ && reports_.empty()) changed_.wait_for(mutex_, time);
}

bool RendezvousClient::stopping() {
  MutexLock lock(mutex_);
  return stopping_;
}

}  // namespace gradwire::rendezvous
