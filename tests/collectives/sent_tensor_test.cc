#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gradwire/base/duty.h"
#include "gradwire/collectives/process_group.h"
#include "gradwire/tests/collectives/worlds.h"

namespace gradwire::collectives {
namespace {

// A message that does not end at once owns its memory alone if the program drops the tensor meanwhile. It
// often ends on a thread on duty, which must not run the deleter.
TEST(SentTensor, DeleterRunsOffDuty) {
  constexpr int64_t kElements = int64_t{4} << 20;
  for (const World& world :
       {World{"SharedMemory", "cpu", {}}, World{"Messages", "cpu", {{"shared_memory", "off"}}}}) {
    absl::Notification deleted;
    bool in_duty = false;
    in_world(2, world, [&](ProcessGroup& group) {
      if (group.rank() == 1) {
        at::Tensor received = at::zeros({kElements});
        group.recv(received, 0);
        return;
      }
      auto memory = std::make_shared<std::vector<float>>(kElements);
      float* const begin = memory->data();
      at::Tensor tensor = at::from_blob(begin, {kElements}, [&, memory = std::move(memory)](void*) {
        in_duty = on_duty();
        deleted.Notify();
      });
      const auto work = group.isend(std::move(tensor), 1);
      work->wait();
    });
    deleted.WaitForNotification();
    EXPECT_FALSE(in_duty) << world.name;
  }
}

}  // namespace
}  // namespace gradwire::collectives
