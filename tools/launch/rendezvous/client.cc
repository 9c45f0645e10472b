#include "gradwire/tools/launch/rendezvous/client.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gradwire/base/error.h"
#include "gradwire/base/random_id.h"
#include "gradwire/tools/launch/io/fd.h"

namespace gradwire::rendezvous {
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
  return std::unique_ptr<RendezvousClient>(
      new RendezvousClient(std::move(options), std::move(open_store), clock, std::move(event)));
}

RendezvousClient::RendezvousClient(ClientOptions options, OpenStore opener, Clock& clock, Descriptor event)
    : options_(std::move(options)),
      open_store_(std::move(opener)),
      clock_(clock),
      event_(std::move(event)),
      driver_(
          options_.node, options_.store_timeout, [this] { return stopping(); }, clock),
      thread_([this] { run(); }) {}

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
  tools::write_retrying(event_.get(), &one, sizeof(one));
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
