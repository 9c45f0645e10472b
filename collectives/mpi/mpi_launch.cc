#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/process/host.h"
#include "gradwire/collectives/mpi/mpi_backend.h"
#include "gradwire/collectives/mpi/mpi_member.h"
#include "gradwire/store/tcp_store.h"

namespace gradwire::collectives {
namespace {

// What rank 0 tells the others: where the store is, or why there is none.
struct Notice {
  int port = 0;
  char text[508] = {};
};

// Whether all that were launched live on this host.
absl::StatusOr<bool> all_on_one_host(MpiRuntime& runtime) {
  MPI_Comm host = MPI_COMM_NULL;
  int size = 0;
  GRADWIRE_RETURN_IF_ERROR(runtime.call("MPI_Comm_split_type", [&] {
    return MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
  }));
  GRADWIRE_RETURN_IF_ERROR(runtime.call("MPI_Comm_size", [&] { return MPI_Comm_size(host, &size); }));
  (void)runtime.call("MPI_Comm_free", [&] { return MPI_Comm_free(&host); });
  return size == runtime.size();
}

absl::Status tell(MpiRuntime& runtime, Notice& notice, absl::Time deadline) {
  MPI_Request request = MPI_REQUEST_NULL;
  GRADWIRE_RETURN_IF_ERROR(runtime.call("MPI_Ibcast", [&] {
    return MPI_Ibcast(&notice, sizeof notice, MPI_BYTE, 0, MPI_COMM_WORLD, &request);
  }));
  MpiPause pause;
  for (int done = 0;;) {
    GRADWIRE_RETURN_IF_ERROR(
        runtime.call("MPI_Test", [&] { return MPI_Test(&request, &done, MPI_STATUS_IGNORE); }));
    if (done != 0) return absl::OkStatus();
    if (!pause.pause() || pause.now() < deadline) continue;
    runtime.give_up_finalising();
    return absl::DeadlineExceededError("mpi: rank 0 did not say in time where the store is");
  }
}

}  // namespace

absl::StatusOr<std::pair<int, int>> mpi_launch_place() {
  GRADWIRE_ASSIGN_OR_RETURN(MpiRuntime* const runtime, MpiRuntime::get());
  return std::make_pair(runtime->rank(), runtime->size());
}

absl::StatusOr<std::shared_ptr<store::Store>> mpi_launch_store(absl::Duration timeout) {
  const absl::Time deadline = Clock::system().now() + timeout;
  GRADWIRE_ASSIGN_OR_RETURN(MpiRuntime* const runtime, MpiRuntime::get());
  GRADWIRE_ASSIGN_OR_RETURN(const bool one_host, all_on_one_host(*runtime));
  // Not freed when rank 0 is late: MPI may still write to it.
  auto* const notice = new Notice;
  std::shared_ptr<store::Store> held;
  absl::Status failure;
  if (runtime->rank() == 0) {
    const std::string host = one_host ? "127.0.0.1" : host_name();
    auto opened = store::TcpStore::open(host, 0, {.is_master = true, .timeout = timeout});
    failure = opened.status();
    if (opened.ok()) {
      notice->port = (*opened)->port();
      held = *std::move(opened);
    }
    const std::string text = failure.ok() ? host : std::string(failure.message());
    text.copy(notice->text, sizeof notice->text - 1);
  }
  GRADWIRE_RETURN_IF_ERROR(tell(*runtime, *notice, deadline));
  const Notice heard = *notice;
  delete notice;
  if (runtime->rank() == 0) {
    if (!failure.ok()) return failure;
    return held;
  }
  const std::string text(heard.text, strnlen(heard.text, sizeof heard.text));
  if (heard.port <= 0) return absl::UnavailableError(absl::StrCat("mpi: rank 0 has no store: ", text));
  GRADWIRE_ASSIGN_OR_RETURN(
      std::shared_ptr<store::Store> joined,
      store::TcpStore::open(text, heard.port, {.timeout = deadline - Clock::system().now()}));
  return joined;
}

}  // namespace gradwire::collectives
