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

// The message of rank 0 to the others: the store's address, or the reason why rank 0 could not make the
// store.
struct Notice {
  // The store's port; 0 if there is no store.
  int port = 0;
  // The store's host, or the reason.
  char text[508] = {};
};

// Whether all launched processes are on this host.
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

absl::Status broadcast_notice(MpiRuntime& runtime, Notice& notice, absl::Time deadline) {
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
    // The broadcast may never end, and MPI_Finalize would wait for it.
    runtime.give_up_finalising();
    return absl::DeadlineExceededError("mpi: rank 0 did not send the address of the store in time");
  }
}

}  // namespace

absl::StatusOr<std::pair<int, int>> mpi_launch_rank_and_size() {
  GRADWIRE_ASSIGN_OR_RETURN(MpiRuntime* const runtime, MpiRuntime::get());
  return std::make_pair(runtime->rank(), runtime->size());
}

absl::StatusOr<std::shared_ptr<store::Store>> mpi_launch_store(absl::Duration timeout) {
  const absl::Time deadline = Clock::system().now() + timeout;
  GRADWIRE_ASSIGN_OR_RETURN(MpiRuntime* const runtime, MpiRuntime::get());
  GRADWIRE_ASSIGN_OR_RETURN(const bool one_host, all_on_one_host(*runtime));
  // On the heap, because it is not freed after a timeout: MPI may still write to it.
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
  GRADWIRE_RETURN_IF_ERROR(broadcast_notice(*runtime, *notice, deadline));
  const Notice received = *notice;
  delete notice;
  if (runtime->rank() == 0) {
    // Rank 0 has sent the notice even after its own failure, so the others do not wait for it.
    if (!failure.ok()) return failure;
    return held;
  }
  const std::string text(received.text, strnlen(received.text, sizeof received.text));
  if (received.port <= 0) {
    return absl::UnavailableError(absl::StrCat("mpi: rank 0 could not make the store: ", text));
  }
  GRADWIRE_ASSIGN_OR_RETURN(
      std::shared_ptr<store::Store> joined,
      store::TcpStore::open(text, received.port, {.timeout = deadline - Clock::system().now()}));
  return joined;
}

}  // namespace gradwire::collectives
