#include "gradwire/collectives/mpi/mpi_runtime.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"

namespace gradwire::collectives {
namespace {

// A launcher sets one of these: Open MPI's mpirun, PMIx (srun, prun), older PMI.
constexpr const char* kLauncherVariables[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"};

bool launched() {
  for (const char* name : kLauncherVariables) {
    if (std::getenv(name) != nullptr) return true;
  }
  return false;
}

MpiRuntime* g_started = nullptr;

}  // namespace

absl::StatusOr<MpiRuntime*> MpiRuntime::get() {
  // Never destroyed: threads may still ask for it while the process ends.
  static MpiRuntime* runtime = new MpiRuntime;
  static const absl::Status& started = *new absl::Status(runtime->start());
  GRADWIRE_RETURN_IF_ERROR(started);
  if (runtime->finalised()) return absl::FailedPreconditionError("MPI has been finalised");
  return runtime;
}

absl::Status MpiRuntime::start() {
  int initialised = 0;
  int finalised = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  if (finalised != 0) return absl::FailedPreconditionError("MPI has been finalised");
  int level = MPI_THREAD_SINGLE;
  if (initialised != 0) {
    MPI_Query_thread(&level);
  } else {
    // Without a launcher, MPI_Init would start a daemon and make this process rank 0 of 1, even if the
    // program expects more ranks.
    if (!launched()) {
      return absl::FailedPreconditionError(
          "the backend mpi needs a process that MPI has started: mpirun -n 2 program (neither "
          "OMPI_COMM_WORLD_SIZE nor PMIX_RANK nor PMI_RANK is set)");
    }
    const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
    if (code != MPI_SUCCESS) return error("MPI_Init_thread", code);
    // By default MPI ends the process after an error.
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    finalises_.store(true);
    g_started = this;
    std::atexit(&MpiRuntime::at_exit);
  }
  one_at_a_time_ = level < MPI_THREAD_MULTIPLE;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID"}) {
    const char* value = std::getenv(name);
    if (value != nullptr && job_.empty()) job_ = value;
  }
  return absl::OkStatus();
}

// The program may have called MPI_Finalize itself. After give_up_finalising() a request may never end, and
// MPI_Finalize would wait for it.
void MpiRuntime::at_exit() {
  if (g_started->mark_.here() && g_started->finalises_.load() && !g_started->finalised()) MPI_Finalize();
}

bool MpiRuntime::finalised() const {
  int done = 0;
  MPI_Finalized(&done);
  return done != 0;
}

absl::Status MpiRuntime::error(const char* name, int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  int kind = MPI_ERR_OTHER;
  MPI_Error_string(code, text, &length);
  MPI_Error_class(code, &kind);
  const std::string message =
      absl::StrCat(name, ": ", absl::string_view(text, static_cast<std::size_t>(length)));
  switch (kind) {
    case MPI_ERR_TRUNCATE:
    case MPI_ERR_BUFFER:
    case MPI_ERR_COUNT:
    case MPI_ERR_TYPE:
    case MPI_ERR_TAG:
    case MPI_ERR_RANK:
    case MPI_ERR_ROOT:
    case MPI_ERR_OP:
      return absl::InvalidArgumentError(message);
    case MPI_ERR_NO_MEM:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::UnavailableError(message);
  }
}

}  // namespace gradwire::collectives
