#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradwire/base/testing/test_needs.h"
#include "gtest/gtest.h"

// Groups over Open MPI, as programs that mpirun starts.
namespace gradwire::collectives {
namespace {

using testing::HasSubstr;

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

class MpiGroups : public testing::TestWithParam<int> {
 protected:
  static void SetUpTestSuite() {
    const Outcome probe = run("mpirun --version");
    if (probe.status != 0) {
      mpi_ = absl::NotFoundError(absl::StrCat("mpirun does not run here: ", probe.output));
    }
  }
  void SetUp() override { GRADWIRE_NEEDS("mpi", mpi_); }

  // `timeout` ends what hangs.
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

// The conformance suite of tests/collectives.
TEST_P(MpiGroups, DoEveryOperationOnEveryDtype) {
  const Outcome outcome = launch("conformance", GetParam());
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  expect_done(outcome, GetParam());
}

// Open MPI is the oracle: what it makes of random tensors is what our own backend makes of them.
TEST_P(MpiGroups, GiveWhatTheCpuBackendGives) {
  const Outcome outcome = launch("oracle", GetParam());
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  expect_done(outcome, GetParam());
}

// A broken group leaves MPI unfinalised, which mpirun calls a failure.
TEST_P(MpiGroups, NameWhoDidNotComeInTime) { expect_done(launch("late", GetParam()), GetParam()); }

TEST_P(MpiGroups, HearOfARankThatHasLeft) { expect_done(launch("left", GetParam()), GetParam()); }

TEST_P(MpiGroups, HearOfARankThatGaveUp) { expect_done(launch("aborted", GetParam()), GetParam()); }

INSTANTIATE_TEST_SUITE_P(Ranks, MpiGroups, testing::Values(2, 4));

TEST(Mpi, SaysThatItNeedsMpirun) {
  // The test itself may run under a launcher.
  const Outcome outcome =
      run("env -u OMPI_COMM_WORLD_SIZE -u PMIX_RANK -u PMI_RANK collectives/mpi/mpi_member_program late");
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("mpirun"));
}

}  // namespace
}  // namespace gradwire::collectives
