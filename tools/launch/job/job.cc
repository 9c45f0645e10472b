#include "gradwire/tools/launch/job/job.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/log_level.h"
#include "gradwire/base/process/host.h"
#include "gradwire/base/process/shortage.h"
#include "gradwire/base/process/start_thread.h"
#include "gradwire/base/random_id.h"
#include "gradwire/tools/launch/io/launcher_lines.h"
#include "gradwire/tools/launch/job/environment.h"
#include "gradwire/tools/launch/job/summary.h"
#include "gradwire/tools/launch/options/layout.h"
#include "gradwire/tools/launch/process/error_file.h"

namespace gradwire::tools {
namespace {

// Pause between two attempts to open the stores of the rendezvous.
constexpr absl::Duration kRetryInterval = absl::Milliseconds(500);
// A signal to the launcher and, a moment later, to all processes that it started counts as one request.
constexpr absl::Duration kSameSignal = absl::Seconds(1);

std::string environment_or(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? otherwise : value;
}

std::string choose_run_id(const LaunchOptions& options) {
  if (!options.run_id.empty()) return options.run_id;
  return options.max_nodes > 1 ? rendezvous::kNoRunId : absl::StrFormat("%016x", random_id());
}

// The failure of a worker, with the message that it left in its error file.
rendezvous::Failure failure_of(const Worker& worker, const std::string& error_file, const std::string& host) {
  const WorkerPlace& place = worker.place();
  const absl::StatusOr<ErrorRecord> record = read_error_file(error_file);
  return {.host = host,
          .rank = place.rank,
          .role = place.role,
          .local_rank = place.local_rank,
          .pid = worker.pid(),
          .exit_code = worker.ending().code,
          .signal = worker.ending().signal,
          .time = worker.ending().time,
          .message = record.ok() ? record->message : ""};
}

// The worker that probably made others fail: the first one that ended with 0 but without leaving its group.
// Null if no worker of this round on this node did so.
const Worker* first_to_leave(const Supervisor& supervisor, const WorkerOutputs& outputs, int64_t round) {
  const Worker* first = nullptr;
  for (const Worker* worker : supervisor.ended_well()) {
    const absl::StatusOr<ErrorRecord> record =
        read_error_file(outputs.error_file(round, worker->place().local_rank));
    if (!record.ok() || !record->left_its_group) continue;
    if (first == nullptr || worker->ending().time < first->ending().time) first = worker;
  }
  return first;
}

JobAddress address_of(const rendezvous::RoundInfo& round, const rendezvous::Address& store) {
  return {.master_addr = store.host,
          .master_port = store.port,
          .run_id = round.run_id,
          .restart_count = round.restarts_used,
          .max_restarts = round.max_restarts,
          .round = static_cast<int>(round.round)};
}

std::string begin_of(const rendezvous::RoundInfo& round, int workers) {
  const std::size_t nodes = round.nodes.size();
  return absl::StrCat("round ", round.round, " begins: ", nodes, nodes == 1 ? " node, " : " nodes, ", workers,
                      " workers; restart ", round.restarts_used, " of ", round.max_restarts,
                      round.ended_before ? absl::StrCat("; the previous round ended: ",
                                                        rendezvous::describe(*round.ended_before))
                                         : "");
}

JobMetrics::Options metrics_of(const LaunchOptions& options) {
  return {.address = options.metrics_address,
          .insecure = options.metrics_insecure || options.security.kind == LaunchSecurity::Kind::kInsecure,
          .exported = !options.otlp_endpoint.empty()};
}

JobPage::Options page_of(const LaunchOptions& options) {
  return {.address = options.page,
          .insecure = options.security.kind == LaunchSecurity::Kind::kInsecure,
          .flight = environment_or("GRADWIRE_FLIGHT_DIR", "")};
}

// Prints what observes the job, and where.
void print_addresses(const JobMetrics& metrics, const JobExport* exported, const JobPage* page,
                     WorkerOutputs& outputs) {
  if (!metrics.address().empty())
    outputs.print(absl::StrCat("serving the metrics of this node's workers at ", metrics.address()));
  if (exported != nullptr)
    outputs.print(absl::StrCat("pushing the metrics of this node's workers to ", exported->address()));
  if (page != nullptr) outputs.print(absl::StrCat("serving the page of the job at ", page->url()));
}

// The part of this node in the rendezvous, without the names of its host and of its run.
rendezvous::Options node_of(const LaunchOptions& options, const RendezvousStores& stores) {
  rendezvous::Options node;
  node.self = {.host = {}, .address = stores.own_address(), .roles = options.roles};
  node.settings = {.min_nodes = options.min_nodes,
                   .max_nodes = options.max_nodes,
                   .max_restarts = options.max_restarts,
                   .fixed_ranks = options.node_rank.has_value()};
  node.node_rank = options.node_rank;
  node.round_store = stores.round_store();
  node.hosts_store = stores.hosts_store();
  node.join_timeout = options.conf.join_timeout;
  node.last_call_timeout = options.conf.last_call_timeout;
  node.keep_alive_interval = options.conf.keep_alive_interval;
  node.keep_alive_max_attempt = options.conf.keep_alive_max_attempt;
  return node;
}

}  // namespace

// The reaper is forked while the process has one thread, and no descriptors that the reaper would keep open,
// except that of the token, which the workers inherit through it.
absl::StatusOr<std::unique_ptr<LaunchJob>> LaunchJob::create(LaunchOptions options) {
  std::string run_id = choose_run_id(options);
  GRADWIRE_ASSIGN_OR_RETURN(JobSecurity security, JobSecurity::prepare(options.security, run_id));
  GRADWIRE_ASSIGN_OR_RETURN(Announcement announcement, Announcement::create());
  GRADWIRE_ASSIGN_OR_RETURN(JobMetrics metrics, JobMetrics::create(metrics_of(options)));
  GRADWIRE_ASSIGN_OR_RETURN(
      ProcessReaper reaper,
      ProcessReaper::start({.folders = {security.folder(), announcement.folder(), metrics.folder()}}));
  GRADWIRE_ASSIGN_OR_RETURN(LaunchSignals signals, LaunchSignals::block());
  GRADWIRE_ASSIGN_OR_RETURN(FdLoop loop, FdLoop::create());
  return std::unique_ptr<LaunchJob>(
      new LaunchJob(std::move(options), std::move(run_id),
                    {std::move(security), std::move(announcement), std::move(metrics), std::move(reaper),
                     std::move(signals), std::move(loop)}));
}

LaunchJob::LaunchJob(LaunchOptions options, std::string run_id, Setup setup)
    : options_(std::move(options)),
      run_id_(std::move(run_id)),
      host_(host_name()),
      security_(std::move(setup.security)),
      announcement_(std::move(setup.announcement)),
      metrics_(std::move(setup.metrics)),
      trace_({.directory = options_.trace, .records = options_.trace_records}),
      reaper_(std::move(setup.reaper)),
      signals_(std::move(setup.signals)),
      loop_(std::move(setup.loop)),
      outputs_(loop_, options_) {
  for (char** variable = environ; *variable != nullptr; ++variable) environment_.push_back(*variable);
}

absl::StatusOr<int> LaunchJob::run() {
  GRADWIRE_RETURN_IF_ERROR(prepare());
  // A first signal that comes during the last export has nothing else to end.
  const absl::Cleanup last_export = [this] {
    if (export_ == nullptr) return;
    export_->end(loop_, [this, by = interrupted_by_] { return force_kill_ || interrupted_by_ != by; });
  };
  if (const absl::Status entered = enter(); !entered.ok()) {
    if (interrupted_by_ != 0) return 128 + interrupted_by_;
    return entered;
  }
  // Each turn: advance the workers' state, decide whether the run is over, and serve events (signals,
  // updates of the rendezvous, output, ends of workers) for at most next_wait().
  // Advance the supervisor first: the rendezvous may be waiting for the end of its round.
  while (true) {
    if (supervisor_ && supervisor_->advance()) finish_round();
    if (over()) break;
    show_wait();
    loop_.run_once(next_wait());
  }
  loop_.remove(client_->event_fd());
  return conclude();
}

absl::Status LaunchJob::prepare() {
  GRADWIRE_RETURN_IF_ERROR(loop_.add(signals_.fd(), EPOLLIN, [this](uint32_t) {
    while (const int signal = signals_.next()) on_signal(signal);
  }));
  command_ = resolve_command(options_, environment_or("PATH", "/usr/local/bin:/usr/bin:/bin"),
                             environment_or("PYTHON_EXEC", "python3"));
  if (!command_.ok()) {
    if (options_.max_nodes == 1) return command_.status();
    // Join the rendezvous nevertheless: the other nodes would otherwise wait for this one.
    outputs_.print(
        absl::StrCat(command_.status().message(), "; reporting it to the other nodes when they have joined"));
  }
  for (const std::string& note : options_.notes) outputs_.print(note);
  GRADWIRE_RETURN_IF_ERROR(trace_.prepare());
  GRADWIRE_RETURN_IF_ERROR(metrics_.serve());
  GRADWIRE_ASSIGN_OR_RETURN(export_, JobExport::start(options_.otlp_endpoint, run_id_, host_, metrics_));
  GRADWIRE_ASSIGN_OR_RETURN(page_, JobPage::start(page_of(options_), security_));
  print_addresses(metrics_, export_.get(), page_.get(), outputs_);
  return absl::OkStatus();
}

absl::Status LaunchJob::open_stores() {
  const absl::Time deadline = Clock::system().now() + options_.conf.join_timeout;
  bool reported = false;
  begin_wait();
  while (true) {
    if (interrupted_by_ != 0) return absl::CancelledError("interrupted by a signal");
    absl::StatusOr<std::unique_ptr<RendezvousStores>> opened =
        RendezvousStores::open(options_, run_id_, security_.stores());
    if (opened.ok()) {
      stores_ = *std::move(opened);
      return absl::OkStatus();
    }
    // When hosts are started together (as the pods of a Kubernetes Job), their names can be resolved only
    // after a while. A shortage of this process passes too.
    const bool may_pass = absl::IsUnavailable(opened.status()) || is_local_shortage(opened.status());
    if (!may_pass || Clock::system().now() >= deadline) return opened.status();
    if (!reported) outputs_.print(absl::StrCat(opened.status().message(), "; retrying"));
    reported = true;
    show_wait();
    loop_.run_once(kRetryInterval);
  }
}

absl::Status LaunchJob::enter() {
  GRADWIRE_RETURN_IF_ERROR(open_stores());
  rendezvous::ClientOptions client;
  client.node = node_of(options_, *stores_);
  client.node.self.host = host_;
  client.node.run_id = run_id_;
  client.store_timeout = stores_->read_timeout();
  GRADWIRE_ASSIGN_OR_RETURN(client_,
                            rendezvous::RendezvousClient::start(std::move(client), stores_->opener()));
  begin_wait();
  // A signal may have arrived before the client existed.
  if (interrupted_by_ != 0) client_->leave(absl::StrCat("was stopped by ", signal_name(interrupted_by_)));
  return loop_.add(client_->event_fd(), EPOLLIN, [this](uint32_t) { follow(client_->update()); });
}

// 1. Pass the signal to the workers, if any run.
// 2. The first signal makes the node leave the rendezvous, so that the other nodes learn of it at once and
//    do not have to detect a lost node.
// 3. A second signal, unless it belongs to the same request, ends all waiting.
void LaunchJob::on_signal(int signal) {
  if (supervisor_) supervisor_->on_signal(signal);
  const absl::Time now = Clock::system().now();
  if (interrupted_by_ != 0) {
    force_kill_ = force_kill_ || now - interrupted_at_ >= kSameSignal;
    return;
  }
  interrupted_by_ = signal;
  interrupted_at_ = now;
  if (client_) client_->leave(absl::StrCat("was stopped by ", signal_name(signal)));
}

// An update may be repeated, and updates may be skipped, because only the newest one is kept. So a round is
// prepared and started only once (`prepared_round_`, `started_`).
void LaunchJob::follow(const rendezvous::RendezvousUpdate& update) {
  using Kind = rendezvous::RendezvousUpdate::Kind;
  update_ = update;
  switch (update_.kind) {
    case Kind::kWait:
      return;
    case Kind::kPrepareStore:
      if (prepared_round_ < update_.round.round) prepare_round(update_.round.round);
      return;
    case Kind::kRun:
      if (started_ < update_.round.round && interrupted_by_ == 0) start_round(update_.round);
      return;
    case Kind::kStop:
      // The round has failed on another node, so it does not count if this node's workers ended with 0.
      succeeded_ = false;
      if (supervisor_) return supervisor_->end();
      return client_->ready();
    case Kind::kEnded:
      if (supervisor_) supervisor_->end();
      return;
  }
}

void LaunchJob::prepare_round(int64_t round) {
  prepared_round_ = round;
  absl::StatusOr<rendezvous::Address> address = stores_->prepare_round(round);
  if (address.ok()) return client_->store_ready(*std::move(address));
  client_->workers_failed({.host = host_,
                           .time = absl::Now(),
                           .message = absl::StrCat("cannot prepare the workers' store on ", host_, ": ",
                                                   address.status().message())});
}

// If a worker cannot be started, those that were started are ended as after a failure of a worker, and the
// failure is reported to the other nodes.
void LaunchJob::start_round(const rendezvous::RoundInfo& round) {
  started_ = round.round;
  wait_.reset();
  failures_.clear();
  succeeded_ = false;
  not_started_ = false;
  supervisor_.emplace(
      Supervisor::HostInfo{.loop = loop_, .clock = Clock::system(), .reaper = reaper_}, options_.grace_period,
      Supervisor::Callbacks{.print = [this](const std::string& line) { outputs_.print(line); },
                            .failed = [this](const Worker& worker) { on_failure(worker); }});
  if (const absl::Status started = start_workers(round); !started.ok()) {
    not_started_ = true;
    failures_ = {
        {.host = host_,
         .exit_code = 1,
         .time = absl::Now(),
         .message = absl::StrCat("the workers on ", host_, " could not be started: ", started.message())}};
    client_->workers_failed(failures_.front());
    supervisor_->end();
  }
}

absl::Status LaunchJob::start_workers(const rendezvous::RoundInfo& round) {
  GRADWIRE_RETURN_IF_ERROR(command_.status());
  const std::vector<NodeEntry>& nodes = round.nodes;
  GRADWIRE_ASSIGN_OR_RETURN(const std::vector<WorkerPlace> places, lay_out_ranks(nodes, round.group_rank));
  if (static_cast<int>(places.size()) != options_.nproc_per_node) {
    return absl::InvalidArgumentError(
        absl::StrCat("number of workers of this node differs from the rendezvous: got ",
                     options_.nproc_per_node, ", expected ", places.size()));
  }
  if (!prepared_) {
    GRADWIRE_RETURN_IF_ERROR(outputs_.prepare(round.run_id));
    if (!has_variable(environment_, "OMP_NUM_THREADS")) {
      outputs_.print("OMP_NUM_THREADS=1 is set for the workers; set it yourself to give them more threads");
    }
    prepared_ = true;
  } else {
    outputs_.print(begin_of(round, places.front().world_size));
  }
  // A worker's group is never the foreground group of the terminal: a read from the terminal would stop the
  // worker indefinitely.
  Descriptor no_input;
  if (isatty(STDIN_FILENO)) no_input = Descriptor(open("/dev/null", O_RDONLY | O_CLOEXEC));
  // With RoundStore::kReady no update has asked for the preparation.
  if (!round.store) GRADWIRE_RETURN_IF_ERROR(stores_->prepare_round(round.round).status());
  const rendezvous::Address store = stores_->workers_store(round);
  announcement_.publish(options_, run_id_, store, security_, outputs_);
  if (page_ != nullptr) page_->begin_round(absl::StrCat(store.host, ":", store.port));
  metrics_.begin_round(round.round, round.restarts_used);
  const JobAddress job = address_of(round, store);
  ArrivalWatch::Options watch{.open = stores_->workers_opener(round),
                              .round = round.round,
                              .world_size = places.front().world_size,
                              .progress = {.output = &arrival_output_}};
  for (const WorkerPlace& place : places) {
    GRADWIRE_ASSIGN_OR_RETURN(WorkerStreams streams, outputs_.open(round.round, place));
    std::vector<std::string> environment =
        worker_environment(environment_, place, job, outputs_.error_file(round.round, place.local_rank));
    GRADWIRE_ASSIGN_OR_RETURN(auto variables, security_.worker_variables(place));
    GRADWIRE_RETURN_IF_ERROR(metrics_.add_worker(place.local_rank, place.rank, variables));
    GRADWIRE_RETURN_IF_ERROR(trace_.add_worker(round.round, place, variables));
    for (const auto& [name, value] : variables) set_variable(environment, name, value);
    // Keeps programs from moving the cursor or using colours.
    if (streams.terminal) set_variable(environment, "TERM", "dumb");
    GRADWIRE_ASSIGN_OR_RETURN(Worker worker,
                              Worker::start(reaper_, place,
                                            {.command = command_->for_local_rank(place.local_rank),
                                             .environment = std::move(environment),
                                             .stdin_fd = no_input.get(),
                                             .stdout_fd = streams.out.get(),
                                             .stderr_fd = streams.err.get(),
                                             .signal_mask = signals_.original_mask(),
                                             .ignore_sigpipe = signals_.sigpipe_was_ignored()}));
    watch.workers.push_back({.rank = place.rank, .local_rank = place.local_rank, .pid = worker.pid()});
    GRADWIRE_RETURN_IF_ERROR(supervisor_->add(std::move(worker)));
  }
  if (watch.world_size > 1) {
    GRADWIRE_ASSIGN_OR_RETURN(arrivals_, make_with_threads<ArrivalWatch>(std::move(watch)));
  }
  return absl::OkStatus();
}

// A worker that ended with 0 in the middle of the job often makes others fail: they lose a peer. Reporting
// the failed one would hide the cause, so the worker that left first is reported instead.
void LaunchJob::on_failure(const Worker& worker) {
  const Worker* const left = first_to_leave(*supervisor_, outputs_, started_);
  const Worker& cause = left != nullptr ? *left : worker;
  rendezvous::Failure failure =
      failure_of(cause, outputs_.error_file(started_, cause.place().local_rank), host_);
  if (options_.max_restarts > 0) outputs_.print(rendezvous::describe(failure));
  client_->workers_failed(std::move(failure));
}

// 1. Read the rest of the output, so that it stands before the launcher's own messages.
// 2. Record the failures, which need the error files and the supervisor's workers, then destroy the
//    supervisor.
// 3. Report the result to the rendezvous. If it has asked for the end of the round, the round has failed
//    elsewhere, and only ready() is wanted: the next round may begin.
void LaunchJob::finish_round() {
  arrivals_.reset();
  drain_output();
  succeeded_ = !not_started_ && supervisor_->succeeded();
  for (const Worker* worker : supervisor_->failures())
    failures_.push_back(
        failure_of(*worker, outputs_.error_file(started_, worker->place().local_rank), host_));
  supervisor_.reset();
  metrics_.end_round();
  if (succeeded_) client_->workers_done();
  if (update_.kind == rendezvous::RendezvousUpdate::Kind::kStop) {
    succeeded_ = false;
    client_->ready();
  }
  begin_wait();
}

// The part of LaunchJob that decides when the run ends, and with which exit code.

namespace {

// How long a process that the launcher cannot end may keep a worker's pipe open before its output is cut off.
constexpr absl::Duration kDrainTimeout = absl::Seconds(2);
// How long the launcher may take to report to the other nodes that it leaves.
constexpr absl::Duration kLeaveTimeout = absl::Seconds(3);

// The failures that are not the first one.
std::vector<rendezvous::Failure> others_of(std::vector<rendezvous::Failure> failures,
                                           const rendezvous::Failure& first) {
  std::erase_if(failures, [&](const rendezvous::Failure& each) {
    return each.rank < 0 || (each.host == first.host && each.pid == first.pid);
  });
  return failures;
}

void print_trace(const JobTrace& trace, WorkerOutputs& outputs) {
  for (const std::string& line : trace.write()) outputs.print(line);
}

}  // namespace

// The run is over when the rendezvous has ended for this node and no other node needs its store. A limit
// keeps it from waiting indefinitely; the limit begins when the job has ended, or after a signal.
bool LaunchJob::over() {
  if (supervisor_) return false;
  const absl::Time now = Clock::system().now();
  const bool ended = update_.kind == rendezvous::RendezvousUpdate::Kind::kEnded;
  if (give_up_at_ == absl::InfiniteFuture()) {
    // Others may need this launcher's store to learn that the job is over.
    if (ended) {
      give_up_at_ = now + options_.conf.close_timeout;
    } else if (interrupted_by_ != 0) {
      give_up_at_ = now + kLeaveTimeout;
    }
  }
  return force_kill_ || now >= give_up_at_ || (ended && client_->done());
}

absl::Duration LaunchJob::next_wait() const {
  if (supervisor_) {
    return std::min(supervisor_->next_wait(), arrivals_ ? arrivals_->until_next() : absl::InfiniteDuration());
  }
  const absl::Duration left = std::max(give_up_at_ - Clock::system().now(), absl::ZeroDuration());
  return wait_ ? std::min(left, wait_->until_next()) : left;
}

// A job on one node waits for nobody.
void LaunchJob::begin_wait() {
  wait_.reset();
  if (options_.max_nodes > 1) wait_.emplace(Progress::Target{.output = &wait_output_});
}

void LaunchJob::show_wait() {
  if (arrivals_) arrivals_->show();
  if (wait_ && !supervisor_) wait_->update([this] { return wait_state(); });
}

ProgressState LaunchJob::wait_state() const {
  if (update_.kind == rendezvous::RendezvousUpdate::Kind::kEnded) {
    return {.text =
                "waiting for the other nodes to learn that the job is over; serving the store until then"};
  }
  const std::string where = stores_ ? stores_->location() : std::string("store of the job");
  ProgressState state = client_ ? client_->wait_state() : ProgressState();
  state.text = state.text.empty() ? absl::StrCat("waiting for an answer of the ", where)
                                  : absl::StrCat(state.text, "; in the ", where);
  return state;
}

void LaunchJob::drain_output() {
  Clock& clock = Clock::system();
  const absl::Time cut_off = clock.now() + kDrainTimeout;
  while (outputs_.pumps_open() && !force_kill_ && clock.now() < cut_off)
    loop_.run_once(cut_off - clock.now());
  outputs_.close_pumps();
  // Wait until the launcher's output has been read, as any program waits for a slow reader; after a signal
  // only for a moment.
  while (!outputs_.flushed() && !force_kill_ && (interrupted_by_ == 0 || clock.now() < cut_off)) {
    loop_.run_once(interrupted_by_ == 0 ? absl::InfiniteDuration() : cut_off - clock.now());
  }
}

// The exit code, in this order of precedence:
// 1. After a signal 128 + its number, as in a shell, unless the workers had succeeded before.
// 2. 0 if the job has succeeded.
// 3. The code of the failure that all nodes agree on. Every node prints it, so the cause can be found on any
//    of them.
// 4. Without a failure, the error of the rendezvous, which main() turns into a code.
absl::StatusOr<int> LaunchJob::conclude() {
  wait_.reset();
  // The user who has sent a second signal does not wait for it.
  if (!force_kill_ && trace_.enabled()) {
    print_trace(trace_, outputs_);
    drain_output();
  }
  const rendezvous::Outcome& outcome = update_.outcome;
  if (interrupted_by_ != 0 || outcome.status.ok()) {
    return interrupted_by_ == 0 || succeeded_ ? 0 : 128 + interrupted_by_;
  }
  // The nodes agree which failure was the first; failures on this node may be its consequences.
  std::optional<rendezvous::Failure> first = outcome.failure;
  if (!first && !failures_.empty()) first = failures_.front();
  if (!first) {
    // The store may belong to another job: add its location.
    if (absl::IsInvalidArgument(outcome.status)) return with_context(outcome.status, stores_->location());
    return outcome.status;
  }
  if (first->rank < 0) {
    outputs_.print(rendezvous::describe(*first));
  } else {
    outputs_.print_lines(launcher_lines(
        failure_summary(options_.program, *first, others_of(failures_, *first)), LogLevel::kError));
  }
  drain_output();
  const int code = first->signal != 0 ? 128 + first->signal : first->exit_code;
  return code != 0 ? code : 1;
}

}  // namespace gradwire::tools
