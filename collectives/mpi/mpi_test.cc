#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradwire/base/testing/test_needs.h"
#include "gtest/gtest.h"

// Tests groups over Open MPI: mpirun starts the member program on several ranks.
namespace gradwire::collectives {
namespace {

using ::testing::HasSubstr;

struct Outcome {
  int status = -1;
  std::string output;
};

Outcome run(const std::string& command) {
  Outcome outcome;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return outcome;
  char part[4096];
  while (std::fgets(part, sizeof part, pipe) != nullptr) outcome.output += part;
  outcome.status = pclose(pipe);
  return outcome;
}

class MpiGroups : public ::testing::TestWithParam<int> {
 protected:
  static void SetUpTestSuite() {
    const Outcome probe = run("mpirun --version");
    if (probe.status != 0) {
      mpi_ = absl::NotFoundError(absl::StrCat("mpirun does not run on this machine: ", probe.output));
    }
  }
  void SetUp() override { GRADWIRE_NEEDS("mpi", mpi_); }

  // The program `timeout` ends a run that hangs.
  static Outcome launch(const std::string& scenario, int ranks) {
    return run(absl::StrCat("timeout 250 mpirun -n ", ranks,
                            " --oversubscribe --allow-run-as-root --mca mpi_yield_when_idle 1 ",
                            "collectives/mpi/mpi_member_program ", scenario));
  }
  static void expect_done(const Outcome& outcome, int ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_THAT(outcome.output, HasSubstr(absl::StrCat("rank ", rank, " done")));
    }
  }

 private:
  static inline absl::Status mpi_;
};

// Runs the conformance suite of tests/collectives.
TEST_P(MpiGroups, DoEveryOperationOnEveryDtype) {
  const Outcome outcome = launch("conformance", GetParam());
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  expect_done(outcome, GetParam());
}

// Open MPI is the oracle: for random tensors, the cpu backend must give the same results.
TEST_P(MpiGroups, GiveWhatTheCpuBackendGives) {
  const Outcome outcome = launch("oracle", GetParam());
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  expect_done(outcome, GetParam());
}

// The exit status is not checked: a broken group does not finalise MPI, and mpirun reports that as a failure.
TEST_P(MpiGroups, NameRanksThatDidNotArriveInTime) { expect_done(launch("late", GetParam()), GetParam()); }

TEST_P(MpiGroups, DetectARankThatHasLeft) { expect_done(launch("left", GetParam()), GetParam()); }

TEST_P(MpiGroups, DetectARankThatAborted) { expect_done(launch("aborted", GetParam()), GetParam()); }

INSTANTIATE_TEST_SUITE_P(Ranks, MpiGroups, ::testing::Values(2, 4));

TEST(Mpi, ErrorWithoutALauncherNamesMpirun) {
  // The test itself may run under a launcher.
  const Outcome outcome =
      run("env -u OMPI_COMM_WORLD_SIZE -u PMIX_RANK -u PMI_RANK collectives/mpi/mpi_member_program late");
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("mpirun"));
}

}  // namespace
}  // namespace gradwire::collectives
