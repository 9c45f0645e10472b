#include "gradwire/collectives/mpi/mpi_witness.h"

#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gradwire/store/hash_store.h"
#include "gtest/gtest.h"

namespace gradwire::collectives {
namespace {

using ::testing::HasSubstr;

class Witnesses : public ::testing::Test {
 protected:
  const std::shared_ptr<store::Store> store_ = std::make_shared<store::HashStore>();
  MpiWitness first_{store_, 0, 3};
  MpiWitness second_{store_, 1, 3};
  MpiWitness third_{store_, 2, 3};
};

TEST_F(Witnesses, NameRanksThatHaveNotReportedThatTheyWait) {
  first_.report_waiting(5);
  second_.report_waiting(5);
  third_.report_waiting(4);
  EXPECT_EQ(first_.missing(5), "no report from rank 2");
  third_.report_waiting(6);
  EXPECT_EQ(first_.missing(5), "");
}

TEST_F(Witnesses, ReportARankThatLeftBeforeItHadFinished) {
  EXPECT_TRUE(first_.check_departures(1).ok());
  third_.report_leaving(7, "");
  EXPECT_TRUE(first_.check_departures(7).ok());
  const absl::Status status = first_.check_departures(8);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 2 has left"));
  EXPECT_TRUE(first_.has_left(2));
  EXPECT_FALSE(first_.has_left(1));
}

TEST_F(Witnesses, ReportWhyARankGaveUp) {
  second_.report_leaving(0, "out of memory");
  const absl::Status status = first_.check_departures(1);
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 has failed: out of memory"));
}

TEST_F(Witnesses, DoNotTrustTheValuesInTheStore) {
  store_->set("mpi/at/1", "many");
  store_->set("mpi/at/2", "99999999999999999999999999");
  EXPECT_EQ(first_.missing(1), "no report from rank 1, rank 2");
  store_->set("mpi/left/1", std::string(100'000, 'x'));
  EXPECT_LT(first_.check_departures(1).message().size(), 2000u);
}

TEST(Witness, WithoutAStoreNoRankIsKnownToHaveArrived) {
  MpiWitness alone(nullptr, 0, 2);
  alone.report_waiting(1);
  EXPECT_EQ(alone.missing(1), "no report from rank 1");
  EXPECT_TRUE(alone.check_departures(1).ok());
}

}  // namespace
}  // namespace gradwire::collectives
