// Tests messages that a backend ends at once.
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gradwire/base/error.h"
#include "gradwire/collectives/process_group.h"
#include "gradwire/collectives/registry/backend_registry.h"
#include "gradwire/collectives/testing/group.h"
#include "gradwire/collectives/testing/idle_backend.h"
#include "gradwire/collectives/testing/local_backend.h"

namespace gradwire::collectives {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::Ranks;

// The backend of a group of one rank. try_send() and try_receive() return the values that a test sets;
// try_receive() also fills the tensor with 7. Later messages end with a future.
class ShortMessages final : public testing::IdleBackend {
 public:
  std::optional<absl::Status> sends;
  std::optional<absl::StatusOr<int>> receives;
  int futures = 0;

  std::optional<absl::Status> try_send(const at::Tensor&, int, int) override { return sends; }
  std::optional<absl::StatusOr<int>> try_receive(const at::Tensor& tensor, int, int) override {
    if (receives.has_value() && receives->ok()) static_cast<float*>(tensor.data_ptr())[0] = 7;
    return receives;
  }
  Future<void> send(at::Tensor, int, int, absl::Time) override {
    ++futures;
    return absl::OkStatus();
  }
  Future<int> receive(at::Tensor tensor, int, int, absl::Time) override {
    ++futures;
    static_cast<float*>(tensor.data_ptr())[0] = 8;
    return absl::StatusOr<int>(0);
  }
};

// The backend of the group of the running test. A factory has no state of its own.
ShortMessages* made = nullptr;

absl::StatusOr<std::unique_ptr<GroupBackend>> make(const BackendContext&) {
  auto backend = std::make_unique<ShortMessages>();
  made = backend.get();
  return backend;
}

class ShortMessage : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { register_backend(Backend::kCpu, make); }
  static void TearDownTestSuite() { testing::use_local_backend(); }

  ProcessGroup& group() { return *ranks[0]; }

  Ranks ranks{1};
  ShortMessages* const backend = made;
};

TEST_F(ShortMessage, EndsWithoutAFutureAndIsRecorded) {
  backend->sends = absl::OkStatus();
  backend->receives = 0;
  at::Tensor tensor = at::zeros({1});
  const auto version = tensor._version();
  group().send(tensor, 0, 3);
  const auto work = group().isend(tensor, 0, 4);
  EXPECT_TRUE(work->is_success());
  EXPECT_THROW((void)work->source_rank(), Error);
  EXPECT_EQ(group().recv(tensor, kAnySource, 5), 0);
  EXPECT_EQ(tensor.item<float>(), 7);
  EXPECT_GT(tensor._version(), version);
  EXPECT_EQ(backend->futures, 0);
  EXPECT_THAT(group().flight_record(), HasSubstr("send Float[1] to 0 tag 3: done"));
  EXPECT_THAT(group().flight_record(), HasSubstr("send Float[1] to 0 tag 4: done"));
  EXPECT_THAT(group().flight_record(), HasSubstr("recv Float[1] from any tag 5: done"));
}

TEST_F(ShortMessage, ErrorNamesTheMessageAndIsRecorded) {
  backend->sends = absl::AbortedError("broken");
  backend->receives = absl::UnavailableError("rank 0 has left");
  at::Tensor tensor = at::zeros({1});
  const auto work = group().isend(tensor, 0, 3);
  EXPECT_TRUE(work->is_completed());
  EXPECT_THROW(group().send(tensor, 0, 4), Error);
  try {
    work->wait();
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("send to rank 0, tag 3, of group \"world\" (rank 0 of 1): broken"));
  }
  try {
    group().recv(tensor, 0, 5);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("recv from rank 0, tag 5, of group \"world\" (rank 0 of 1): "));
  }
  EXPECT_THAT(group().flight_record(), HasSubstr("tag 3: failed (ABORTED)"));
  EXPECT_THAT(group().flight_record(), HasSubstr("tag 5: failed (UNAVAILABLE)"));
}

TEST_F(ShortMessage, SourceThatDoesNotExistIsAnError) {
  at::Tensor tensor = at::zeros({1});
  for (const int source : {-1, 1}) {
    backend->receives = source;
    EXPECT_THROW(group().recv(tensor, 0), Error);
  }
}

TEST_F(ShortMessage, OtherMessagesEndWithAFuture) {
  at::Tensor tensor = at::zeros({1});
  group().send(tensor, 0);
  EXPECT_EQ(group().recv(tensor, 0), 0);
  EXPECT_EQ(tensor.item<float>(), 8);
  EXPECT_EQ(backend->futures, 2);
  // Strided: the backend cannot use the memory of the tensor itself.
  backend->sends = absl::OkStatus();
  backend->receives = 0;
  const at::Tensor columns = at::zeros({2, 2});
  group().send(columns.select(1, 0), 0);
  group().recv(columns.select(1, 0), 0);
  EXPECT_EQ(columns[0][0].item<float>(), 8);
  EXPECT_EQ(backend->futures, 4);
  // Without an entry for an attempt that did not end the message.
  EXPECT_THAT(group().flight_record(), Not(HasSubstr("running")));
  EXPECT_THAT(group().flight_record(), HasSubstr("the last 4 operations"));
}

TEST_F(ShortMessage, IsRefusedAfterDestroy) {
  at::Tensor tensor = at::zeros({1});
  const testing::Group group = ranks[0];
  group->destroy();
  EXPECT_THROW(group->send(tensor, 0), Error);
  EXPECT_THROW(group->recv(tensor, 0), Error);
}

}  // namespace
}  // namespace gradwire::collectives
