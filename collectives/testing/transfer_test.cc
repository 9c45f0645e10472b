// Tests point-to-point messages.
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gradwire/base/error.h"
#include "gradwire/collectives/process_group.h"
#include "gradwire/collectives/testing/group.h"
#include "gradwire/collectives/testing/local_backend.h"

namespace gradwire::collectives {
namespace {

using ::testing::AllOf;
using testing::Group;
using ::testing::HasSubstr;
using testing::Ranks;

[[maybe_unused]] const bool transfers_use_local_backend = (testing::use_local_backend(), true);

at::Tensor number(double value) { return at::full({3}, value); }

TEST(Transfer, MessagesOfOneTagKeepTheirOrderAndTagsAreSeparate) {
  Ranks ranks(2);
  ranks.run([](const Group& group) {
    if (group->rank() == 0) {
      for (int i = 0; i < 4; ++i) group->send(number(i), 1, i % 2);
      return;
    }
    at::Tensor tensor = at::zeros({3});
    for (int i : {1, 3, 0, 2}) {
      EXPECT_EQ(group->recv(tensor, 0, i % 2), 0);
      EXPECT_TRUE(tensor.equal(number(i)));
    }
  });
}

TEST(Transfer, ReceiveFromAnySourceReturnsTheSender) {
  Ranks ranks(3);
  ranks.run([](const Group& group) {
    if (group->rank() != 0) return group->send(number(group->rank()), 0, 7);
    std::vector<bool> seen(3, false);
    for (int i = 0; i < 2; ++i) {
      at::Tensor tensor = at::zeros({3});
      const int from = group->recv(tensor, kAnySource, 7);
      EXPECT_TRUE(tensor.equal(number(from)));
      seen[from] = true;
    }
    EXPECT_TRUE(seen[1] && seen[2]);
  });
}

TEST(Transfer, WorkGivesTheSourceRank) {
  Ranks ranks(2);
  ranks.run([](const Group& group) {
    const int other = 1 - group->rank();
    at::Tensor received = at::zeros({3});
    // Strided: the message is received into a temporary tensor and then copied.
    at::Tensor columns = at::zeros({3, 2});
    const auto first = group->irecv(received, other, 1);
    const auto second = group->irecv(columns.select(1, 1), kAnySource, 2);
    EXPECT_EQ(group->isend(number(group->rank()), other, 1)->future().wait(), -1);
    const auto sent = group->isend(at::arange(6, at::kFloat).view({3, 2}).select(1, 0), other, 2);
    EXPECT_EQ(first->source_rank(), other);
    EXPECT_EQ(second->source_rank(), other);
    sent->wait();
    EXPECT_TRUE(received.equal(number(other)));
    EXPECT_TRUE(columns.select(1, 1).equal(at::arange(0, 6, 2, at::kFloat)));
    EXPECT_TRUE(columns.select(1, 0).equal(at::zeros({3})));
  });
}

TEST(Transfer, MessagesAreSentWhileACollectiveRuns) {
  Ranks ranks(2);
  ranks.run([](const Group& group) {
    at::Tensor tensor = at::ones({3});
    if (group->rank() == 0) {
      const auto barrier = group->barrier_async();
      group->send(tensor, 1);
      barrier->wait();
    } else {
      group->recv(tensor, 0);
      group->barrier();
    }
  });
}

TEST(Transfer, ErrorsNameTheMessage) {
  Ranks ranks(2, {.timeout = absl::Seconds(3)});
  at::Tensor tensor = at::zeros({3});
  try {
    ranks[0]->recv(tensor, 1, 5);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("DEADLINE_EXCEEDED"),
                      HasSubstr("recv from rank 1, tag 5, of group \"world\" (rank 0 of 2): ")));
  }
  // The timeout of a receive does not break the group.
  ranks[1]->send(number(4), 0, 5);
  const auto work = ranks[0]->irecv(at::zeros({4}), kAnySource, 5);
  EXPECT_FALSE(work->is_success());
  EXPECT_THROW(work->wait(), Error);
  const auto lost = ranks[0]->irecv(tensor, 1, 6);
  ranks[1]->destroy();
  try {
    lost->wait();
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1 has left"));
  }
  EXPECT_THAT(ranks[0]->flight_record(), HasSubstr("recv Float[3] from 1 tag 6: failed (UNAVAILABLE)"));
}

TEST(Transfer, DestroyEndsReceives) {
  Ranks ranks(2);
  const auto pending = ranks[0]->irecv(at::zeros({3}), 1);
  ranks[0]->destroy();
  EXPECT_TRUE(pending->is_completed());
  EXPECT_THROW(pending->wait(), Error);
}

}  // namespace
}  // namespace gradwire::collectives
