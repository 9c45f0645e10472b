#include "gradwire/collectives/mpi/mpi_backend.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/stable_hash.h"
#include "gradwire/collectives/mpi/mpi_group.h"
#include "gradwire/collectives/mpi/mpi_header.h"

#if defined(OPEN_MPI)
#include <mpi-ext.h>
#endif

namespace gradwire::collectives {
namespace {

constexpr int64_t kMostBlock = int64_t{1} << 30;

absl::StatusOr<int64_t> block_of(const BackendContext& context) {
  int64_t block = kMostBlock;
  for (const auto& [name, value] : context.options) {
    if (name != "block_bytes") {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown option of the backend mpi: got \"", name, "\", expected block_bytes"));
    }
    if (!absl::SimpleAtoi(value, &block) || block < 16 || block > kMostBlock) {
      return absl::InvalidArgumentError(
          absl::StrCat("invalid block_bytes: got \"", value, "\", expected 16 to ", kMostBlock));
    }
  }
  return block;
}

std::string mpi_rank_key(int rank) { return absl::StrCat("mpi/seat/", rank); }

// Waits for all ranks of the group and returns their ranks in MPI_COMM_WORLD.
absl::StatusOr<std::vector<int>> find_mpi_ranks(MpiRuntime& runtime, const BackendContext& context) {
  const absl::Time deadline = Clock::system().now() + context.timeout;
  GRADWIRE_RETURN_IF_ERROR(context.store->try_set(
      mpi_rank_key(context.rank), absl::StrCat(runtime.rank(), " ", runtime.job()), context.timeout));
  std::vector<int> found;
  for (int rank = 0; rank < context.size; ++rank) {
    const auto value = context.store->try_get(mpi_rank_key(rank), deadline - Clock::system().now());
    if (!value.ok()) return with_context(value.status(), absl::StrCat("mpi: rank ", rank, " did not arrive"));
    const std::pair<absl::string_view, absl::string_view> halves =
        absl::StrSplit(*value, absl::MaxSplits(' ', 1));
    int mpi_rank = -1;
    // Ranks in MPI_COMM_WORLD mean something only within one launch. A store may connect processes of two
    // launches, whose job ids differ.
    if (!absl::SimpleAtoi(halves.first, &mpi_rank) || mpi_rank < 0 || halves.second != runtime.job() ||
        mpi_rank >= runtime.size()) {
      return absl::InvalidArgumentError(absl::StrCat("mpi: rank ", rank, " of group ", context.group,
                                                     " was not launched together with rank ", context.rank));
    }
    for (int other = 0; other < rank; ++other) {
      if (found[static_cast<std::size_t>(other)] == mpi_rank) {
        return absl::InvalidArgumentError(absl::StrCat("mpi: ranks ", other, " and ", rank, " of group ",
                                                       context.group, " are in one MPI process (rank ",
                                                       mpi_rank, " of MPI_COMM_WORLD)"));
      }
    }
    found.push_back(mpi_rank);
  }
  return found;
}

// The tag for making the group's communicators. Groups that are made at the same time need different tags;
// the hash of the name makes equal tags unlikely.
int creation_tag(absl::string_view group) { return static_cast<int>(stable_hash(group) % 32000U); }

// Two communicators: MPI matches collectives by their order in a communicator and messages by tag, and they
// must not meet. MPI_Comm_create_group is called only by the members, unlike MPI_Comm_create.
absl::Status make_communicators(MpiRuntime& runtime, const std::vector<int>& mpi_ranks,
                                const std::string& name, MPI_Comm& collectives, MPI_Comm& messages) {
  MPI_Group world = MPI_GROUP_NULL;
  MPI_Group members = MPI_GROUP_NULL;
  GRADWIRE_RETURN_IF_ERROR(
      runtime.call("MPI_Comm_group", [&] { return MPI_Comm_group(MPI_COMM_WORLD, &world); }));
  absl::Status status = runtime.call("MPI_Group_incl", [&] {
    return MPI_Group_incl(world, static_cast<int>(mpi_ranks.size()), mpi_ranks.data(), &members);
  });
  for (MPI_Comm* comm : {&collectives, &messages}) {
    if (status.ok()) {
      status = runtime.call("MPI_Comm_create_group", [&] {
        return MPI_Comm_create_group(MPI_COMM_WORLD, members, creation_tag(name), comm);
      });
    }
    if (status.ok()) {
      status = runtime.call("MPI_Comm_set_errhandler",
                            [&] { return MPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN); });
    }
  }
  // The communicators do not need the groups.
  if (members != MPI_GROUP_NULL) MPI_Group_free(&members);
  MPI_Group_free(&world);
  return status;
}

[[maybe_unused]] const bool kRegistered = [] {
  register_backend(Backend::kMpi, {.make = &make_mpi_backend,
                                   .launch_rank_and_size = &mpi_launch_rank_and_size,
                                   .launch_store = &mpi_launch_store,
                                   .takes_cuda = &mpi_takes_cuda});
  return true;
}();

}  // namespace

absl::StatusOr<std::unique_ptr<GroupBackend>> make_mpi_backend(const BackendContext& context) {
  GRADWIRE_ASSIGN_OR_RETURN(const int64_t block, block_of(context));
  GRADWIRE_ASSIGN_OR_RETURN(MpiRuntime* const runtime, MpiRuntime::get());
  // MPI cannot cancel making a communicator. So wait first, with a timeout, until all ranks have arrived.
  GRADWIRE_ASSIGN_OR_RETURN(const std::vector<int> mpi_ranks, find_mpi_ranks(*runtime, context));
  MPI_Comm collectives = MPI_COMM_NULL;
  MPI_Comm messages = MPI_COMM_NULL;
  GRADWIRE_RETURN_IF_ERROR(make_communicators(*runtime, mpi_ranks, context.group, collectives, messages));
  return std::make_unique<MpiGroup>(
      std::make_shared<MpiMember>(*runtime, collectives, messages, context.rank, context.size, block,
                                  MpiWitness(context.store, context.rank, context.size)));
}

bool mpi_takes_cuda() {
#if defined(MPIX_CUDA_AWARE_SUPPORT)
  return MPIX_Query_cuda_support() == 1;
#else
  return false;
#endif
}

}  // namespace gradwire::collectives
