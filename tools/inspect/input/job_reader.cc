#include "gradwire/tools/inspect/input/job_reader.h"

#include <unistd.h>

#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/store/calls/endpoint.h"
#include "gradwire/store/file_store.h"
#include "gradwire/store/init/init_url.h"
#include "gradwire/store/init/multicast_store.h"
#include "gradwire/store/init/process_place.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/tools/inspect/analysis/process_space.h"

namespace gradwire::inspect {
namespace {

using Standing = rpc::JobDirectory::Standing;

// The name under which agents search for one another by an init method.
constexpr char kGroupName[] = "rpc";

// Whether a process of this host is stopped, by SIGSTOP, SIGTSTP or a debugger. False if it does not exist.
bool is_stopped(int64_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string line;
  if (!std::getline(file, line)) return false;
  // "PID (NAME) STATE ...". The name may have any characters.
  const std::size_t end = line.rfind(") ");
  if (end == std::string::npos || end + 2 >= line.size()) return false;
  return line[end + 2] == 'T' || line[end + 2] == 't';
}

absl::StatusOr<std::string> place_of_environment() {
  const auto host = store::environment_variable("MASTER_ADDR");
  const auto port = store::environment_variable("MASTER_PORT");
  if (!port) {
    return absl::InvalidArgumentError(
        "the job is unknown: give --store=HOST:PORT, or set MASTER_ADDR and MASTER_PORT as for its workers");
  }
  return absl::StrCat(host.value_or("localhost"), ":", *port);
}

absl::StatusOr<std::shared_ptr<store::Store>> open_tcp_store(const store::Endpoint& endpoint,
                                                             const JobPlace& place) {
  GRADWIRE_ASSIGN_OR_RETURN(std::shared_ptr<store::TcpStore> store,
                            store::TcpStore::open(endpoint.host, endpoint.port,
                                                  {.timeout = place.timeout, .security = place.security}));
  return store;
}

absl::StatusOr<std::shared_ptr<store::Store>> open_store(const JobPlace& place) {
  std::string where = place.store;
  if (where == "env://") {
    GRADWIRE_ASSIGN_OR_RETURN(where, place_of_environment());
  }
  if (!absl::StrContains(where, "://")) where = "tcp://" + where;
  GRADWIRE_ASSIGN_OR_RETURN(const store::InitUrl url, store::parse_init_url(where));
  switch (url.kind) {
    case store::InitUrl::Kind::kTcp:
      return open_tcp_store(url.endpoint, place);
    case store::InitUrl::Kind::kMulticast: {
      GRADWIRE_ASSIGN_OR_RETURN(const store::Endpoint found,
                                store::find_multicast_store(url.endpoint, kGroupName, place.timeout));
      return open_tcp_store(found, place);
    }
    case store::InitUrl::Kind::kFile: {
      // Opening a file that is missing would create it. Without a world size the observer does not count as a
      // user of it.
      if (access(url.path.c_str(), F_OK) != 0) {
        return absl::NotFoundError(
            absl::StrCat("the store file ", url.path, " does not exist: is the job running?"));
      }
      GRADWIRE_ASSIGN_OR_RETURN(std::shared_ptr<store::FileStore> file,
                                store::FileStore::open(url.path, /*world_size=*/std::nullopt, place.timeout));
      return file;
    }
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("cannot find a job by ", where,
                       ": give the address of its store as --store=HOST:PORT or --store=file:///PATH"));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<JobReader>> JobReader::open(const JobPlace& place) {
  GRADWIRE_ASSIGN_OR_RETURN(
      std::unique_ptr<rpc::Observer> observer,
      rpc::Observer::open({.name = place.name, .security = place.security, .most = place.most}));
  GRADWIRE_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, open_store(place));
  return std::unique_ptr<JobReader>(new JobReader(place, std::move(store), std::move(observer)));
}

JobReader::JobReader(const JobPlace& place, std::shared_ptr<store::Store> store,
                     std::unique_ptr<rpc::Observer> observer)
    : timeout_(place.timeout), directory_(std::move(store)), observer_(std::move(observer)) {}

absl::Status JobReader::read_directory(std::string& warning) {
  warning.clear();
  absl::StatusOr<std::vector<rpc::JobDirectory::Entry>> entries = directory_.read(timeout_);
  if (entries.ok()) {
    known_ = *std::move(entries);
  } else if (known_.empty()) {
    return entries.status();
  } else {
    warning = absl::StrCat("the store does not answer: ", entries.status().message());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<proto::WorkerRecord>> JobReader::members(std::string& warning) {
  GRADWIRE_RETURN_IF_ERROR(read_directory(warning));
  std::vector<proto::WorkerRecord> members;
  for (const rpc::JobDirectory::Entry& entry : known_) {
    if (entry.standing == Standing::kMember) members.push_back(entry.record);
  }
  return members;
}

absl::StatusOr<JobView> JobReader::read(std::string& warning) {
  GRADWIRE_RETURN_IF_ERROR(read_directory(warning));
  // For people, so by the wall clock; Clock::system() is that of the deadlines.
  JobView view{.group = directory_.group(), .time = absl::Now()};
  std::vector<proto::WorkerRecord> members;
  for (const rpc::JobDirectory::Entry& entry : known_) {
    WorkerView& worker = view.workers.emplace_back();
    worker.record = entry.record;
    worker.reason = entry.reason;
    worker.standing = entry.standing == Standing::kMember ? WorkerView::Standing::kMember
                      : entry.standing == Standing::kDead ? WorkerView::Standing::kDead
                                                          : WorkerView::Standing::kLeft;
    if (worker.is_member()) members.push_back(entry.record);
  }
  std::vector<rpc::Observer::Answer> answers = observer_->ask(members, timeout_);
  auto answer = answers.begin();
  for (WorkerView& worker : view.workers) {
    if (!worker.is_member()) continue;
    const uint64_t self = worker.record.incarnation();
    if (answer->ok()) {
      worker.state = **std::move(answer);
      const rpc::Exchange exchange = observer_->last_exchange(self);
      worker.asked = exchange.asked;
      worker.answered_at = exchange.answered;
      // Elsewhere the id would name another process of this host.
      const ProcessSpace space = space_of(worker.state);
      if (space.known() && space == own_space()) processes_[self] = worker.state.pid();
    } else {
      worker.status = answer->status();
      const auto process = processes_.find(self);
      if (process != processes_.end() && is_stopped(process->second)) worker.stopped_pid = process->second;
    }
    ++answer;
  }
  return view;
}

}  // namespace gradwire::inspect
