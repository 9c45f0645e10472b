#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/base/testing/status_of.h"
#include "gradwire/collectives/coalescing.h"
#include "gradwire/collectives/registry/backend_registry.h"
#include "gradwire/collectives/testing/group.h"
#include "gradwire/collectives/testing/idle_backend.h"

namespace gradwire::collectives {
namespace {

using Kind = P2POp::Kind;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Ranks;

// Every rank sends to the next one and receives from the one before it. With 4 MiB a send waits for its
// receive.
void exchange_in_a_ring(const Group& group, bool send_first) {
  const int size = group->size(), rank = group->rank();
  const int next = (rank + 1) % size, before = (rank + size - 1) % size;
  const at::Tensor sent = at::full({1 << 20}, static_cast<double>(rank), at::kFloat);
  const at::Tensor got = at::zeros({1 << 20});
  const P2POp send{.kind = Kind::kSend, .tensor = sent, .peer = next, .group = group};
  const P2POp receive{.kind = Kind::kReceive, .tensor = got, .peer = before, .group = group};
  const auto works =
      batch_isend_irecv(send_first ? std::vector<P2POp>{send, receive} : std::vector<P2POp>{receive, send});
  ASSERT_EQ(works.size(), 2);
  for (const auto& work : works) work->wait();
  EXPECT_EQ(works[send_first ? 1 : 0]->source_rank(), before);
  EXPECT_TRUE(got.equal(at::full({1 << 20}, static_cast<double>(before), at::kFloat)));
}

TEST(BatchIsendIrecv, RingOfLargeTensorsDoesNotDeadlock) {
  Ranks ranks(4);
  ranks.run([](const Group& group) {
    for (const bool send_first : {true, false}) exchange_in_a_ring(group, send_first);
  });
}

TEST(BatchIsendIrecv, RingOverMessages) {
  Ranks ranks(3, {.options = {{"shared_memory", "off"}}});
  ranks.run([](const Group& group) { exchange_in_a_ring(group, true); });
}

TEST(BatchIsendIrecv, SeveralMessagesBetweenTwoRanksKeepTheirOrder) {
  Ranks ranks(2);
  ranks.run([](const Group& group) {
    const int other = 1 - group->rank();
    std::vector<at::Tensor> received;
    std::vector<P2POp> messages;
    for (int i = 0; i < 10; ++i) {
      received.push_back(at::zeros({1000}));
      messages.push_back({.kind = Kind::kSend,
                          .tensor = at::full({1000}, i + 10.0 * other),
                          .peer = other,
                          .tag = i % 2,
                          .group = group});
      messages.push_back(
          {.kind = Kind::kReceive, .tensor = received.back(), .peer = other, .tag = i % 2, .group = group});
    }
    for (const auto& work : batch_isend_irecv(messages)) work->wait();
    for (int i = 0; i < 10; ++i) EXPECT_EQ(received[i][0].item<float>(), i + 10.0 * group->rank());
  });
}

TEST(BatchIsendIrecv, GroupsUseRanksOfTheWorld) {
  Ranks ranks(3);
  ranks.run([](const Group& world) {
    const Group pair = world->new_group({0, 2});
    if (pair->rank() < 0) return;
    const int other = 2 - world->rank();
    const at::Tensor got = at::zeros({3});
    const auto works =
        batch_isend_irecv({{.tensor = at::full({3}, 1.0 + world->rank()), .peer = other, .group = pair},
                           {.kind = Kind::kReceive, .tensor = got, .group = pair}});
    for (const auto& work : works) work->wait();
    EXPECT_EQ(works[1]->source_rank(), other);
    EXPECT_TRUE(got.equal(at::full({3}, 1.0 + other)));
  });
}

// Every list has good messages, which must not begin.
TEST(BatchIsendIrecv, InvalidListsAreRefusedBeforeAMessageBegins) {
  Ranks ranks(2);
  ranks.run([](const Group& world) {
    const Group same = world->new_group();
    const at::Tensor tensor = at::ones({2});
    const int other = 1 - world->rank();
    const P2POp send{.tensor = tensor, .peer = other, .group = world};
    const P2POp receive{.kind = Kind::kReceive, .tensor = at::zeros({2}), .peer = other, .group = world};
    const auto refuses = [&](const P2POp& wrong, const std::string& text) {
      for (const std::vector<P2POp>& messages :
           {std::vector<P2POp>{send, receive, wrong}, std::vector<P2POp>{receive, send, wrong}}) {
        const absl::Status status = status_of([&] { batch_isend_irecv(messages); });
        EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
        EXPECT_THAT(status.ToString(), AllOf(HasSubstr("message 2"), HasSubstr(text)));
      }
    };
    for (const Kind kind : {Kind::kSend, Kind::kReceive}) {
      const auto with = [&](at::Tensor of, int peer, int tag, const Group& group) {
        return P2POp{.kind = kind, .tensor = std::move(of), .peer = peer, .tag = tag, .group = group};
      };
      refuses(with(tensor, 0, 0, same), "it is of group \"world/group1\"");
      refuses(with(at::Tensor(), 0, 0, world), "tensor is undefined");
      refuses(with(tensor, 5, 0, world), "is rank 5, which is not one of the group's ranks");
      refuses(with(tensor, -2, 0, world), "is rank -2");
      refuses(with(tensor, 0, -3, world), "the tag is -3");
      refuses(with(at::ones({2}).to_sparse(), 0, 0, world), "tensor is not dense");
      refuses(with(at::ones({2}, at::kMeta), 0, 0, world), "this group takes tensors on cpu");
    }
    refuses({.tensor = tensor, .group = world}, "dst is rank -1");
    refuses({.kind = Kind::kReceive, .tensor = at::zeros({1}).expand({2}), .peer = other, .group = world},
            "share memory");
    EXPECT_THAT(status_of([] { batch_isend_irecv({}); }).ToString(), HasSubstr("the list is empty"));
    EXPECT_THAT(world->flight_record(), HasSubstr("the last 1 operations:\n  #0 new_group"));
    world->barrier();
    // The good messages were not sent: a message that is sent now is the first one.
    const at::Tensor got = at::zeros({2});
    const auto work = world->isend(at::full({2}, 9.0), other);
    world->recv(got);
    work->wait();
    EXPECT_TRUE(got.equal(at::full({2}, 9.0)));
  });
}

// A backend that has no message to a rank itself and none from any rank, as NCCL.
class PickyBackend : public testing::IdleBackend {
 public:
  absl::Status check_peer(c10::Device, int peer) const override {
    return peer == 1 ? absl::OkStatus() : absl::InvalidArgumentError("no such message");
  }
  Future<void> send(at::Tensor, int, int, absl::Time) override {
    ADD_FAILURE() << "a message was sent";
    return absl::OkStatus();
  }
};

TEST(BatchIsendIrecv, MessagesThatTheBackendDoesNotHaveAreRefusedBeforeAMessageBegins) {
  register_backend(Backend::kMpi,
                   {.make = [](const BackendContext&) -> absl::StatusOr<std::unique_ptr<GroupBackend>> {
                     return std::make_unique<PickyBackend>();
                   }});
  Ranks ranks(2, {.backend = "mpi"});
  const at::Tensor tensor = at::ones({2});
  const P2POp send{.tensor = tensor, .peer = 1, .group = ranks[0]};
  for (const P2POp& wrong : {P2POp{.tensor = tensor, .peer = 0, .group = ranks[0]},
                             P2POp{.kind = Kind::kReceive, .tensor = tensor, .group = ranks[0]}}) {
    const absl::Status status = status_of([&] { batch_isend_irecv({send, wrong}); });
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(status.ToString(), AllOf(HasSubstr("message 1"), HasSubstr("no such message")));
  }
}

TEST(BatchIsendIrecv, GroupThatIsDestroyedIsReported) {
  Ranks ranks(2);
  ranks.run([](const Group& group) {
    group->barrier();
    group->destroy();
    EXPECT_EQ(status_of([&] {
                batch_isend_irecv({{.tensor = at::ones({2}), .peer = 1 - group->rank(), .group = group}});
              }).code(),
              absl::StatusCode::kFailedPrecondition);
  });
}

TEST(BatchIsendIrecv, RankThatDoesNotComeIsNamedAtTheTimeout) {
  Ranks ranks(2, {.timeout = absl::Seconds(2)});
  const auto results = ranks.results([](const Group& group) {
    if (group->rank() == 1) return;
    for (const auto& work :
         batch_isend_irecv({{.tensor = at::ones({1 << 20}), .peer = 1, .group = group},
                            {.kind = Kind::kReceive, .tensor = at::ones({2}), .peer = 1, .group = group}})) {
      work->wait();
    }
  });
  EXPECT_EQ(results[0].code(), absl::StatusCode::kDeadlineExceeded) << results[0];
  EXPECT_THAT(results[0].ToString(), HasSubstr("rank 1"));
}

TEST(BatchIsendIrecv, RankThatLeavesIsNamed) {
  Ranks ranks(2, {.timeout = absl::Seconds(60)});
  const auto results = ranks.results([](const Group& group) {
    if (group->rank() == 1) return group->destroy();
    batch_isend_irecv({{.kind = Kind::kReceive, .tensor = at::ones({2}), .peer = 1, .group = group}})[0]
        ->wait();
  });
  EXPECT_EQ(results[0].code(), absl::StatusCode::kUnavailable) << results[0];
  EXPECT_THAT(results[0].ToString(), HasSubstr("rank 1"));
}

}  // namespace
}  // namespace gradwire::collectives
