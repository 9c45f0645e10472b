// Gradients on devices, with connections that break while they are on their way. They travel as arguments do:
// handed over within a process, shared between processes. What was handed over with a lost message cannot be
// taken again, so the message is repeated with the bytes of the gradients.
#include <ATen/TensorOperators.h>

#include <atomic>
#include <memory>

#include "gradwire/autograd/context/service_numbers.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/testing/faults.h"
#include "gradwire/tests/device_autograd/device_layers.h"

namespace gradwire::autograd {
namespace {

using at::Tensor;
using transport::Fault;

Tensor cubed(const Tensor& x) { return x * x * x; }
GRADWIRE_RPC(cubed)

// The messages with gradients that an agent sends.
struct SentGradients {
  // In all, those that carry no bytes of gradients, and those that were lost.
  std::atomic<int> sent{0};
  std::atomic<int> handed_over{0};
  std::atomic<int> lost{0};
  // Every second one is lost that carries no bytes.
  std::atomic<bool> lose{false};
};

rpc::RpcBackendOptions watched(const char* channel, const std::shared_ptr<SentGradients>& gradients) {
  rpc::RpcBackendOptions options = with_channel(channel);
  options.hooks = rpc::testing::outgoing_faults([gradients](const proto::Envelope& envelope) {
    const proto::Request& request = envelope.request();
    if (request.service().number() != kRunService || request.arguments().tensors_size() == 0)
      return Fault::Kind::kDeliver;
    ++gradients->sent;
    if (!request.arguments().has_transfer()) return Fault::Kind::kDeliver;
    const bool lost = gradients->handed_over++ % 2 == 0 && gradients->lose;
    if (lost) ++gradients->lost;
    return lost ? Fault::Kind::kCut : Fault::Kind::kDeliver;
  });
  return options;
}

// The argument: the channel.
class LostGradients : public testing::TestWithParam<const char*> {
 protected:
  LostGradients() : guard_(group_[0]) { lag::set_lag({}); }
  ~LostGradients() override { group_.expect_empty(); }

  // A pass over both workers.
  void train_once() {
    // Small integers, so that every order of multiplications gives the same bits.
    const Tensor x = at::randint(-3, 4, {500}).to(at::kDouble);
    const Tensor there = leaf_on("lag:0", x);
    const Context context;
    const Tensor y = rpc::rpc_sync<&cubed>("worker1", there * 2);
    backward(context, {y.sum()});
    expect_same(get_gradients(context).at(there), 6 * (2 * x) * (2 * x), "gradient");
  }

  const std::shared_ptr<SentGradients> gradients_ = std::make_shared<SentGradients>();
  const NothingLeft after_the_group_;
  rpc::testing::Group group_{2, watched(GetParam(), gradients_)};
  const std::shared_ptr<lag::IpcTravel> ipc_ = lag::IpcTravel::by(GetParam(), group_);
  const rpc::AgentGuard guard_;
};
INSTANTIATE_TEST_SUITE_P(Channels, LostGradients, testing::Values("local", "ipc"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(LostGradients, GradientsTravelAsArgumentsDo) {
  for (int i = 0; i < 10; ++i) train_once();
  EXPECT_GE(gradients_->sent, 20);
  EXPECT_EQ(gradients_->handed_over, gradients_->sent);
}

TEST_P(LostGradients, ALostMessageIsRepeatedWithTheBytesOfItsGradients) {
  gradients_->lose = true;
  for (int i = 0; i < 20; ++i) train_once();
  EXPECT_GE(gradients_->lost, 10);
  EXPECT_EQ(gradients_->sent - gradients_->handed_over, gradients_->lost);
}

}  // namespace
}  // namespace gradwire::autograd
