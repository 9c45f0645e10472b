#include "gradwire/data_parallel/passes/accumulation_hooks.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "gradwire/base/containers/hash_map.h"

namespace gradwire::data_parallel {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

// Runs before the accumulation. It serves passes whose gradients do not go to `.grad`.
class PreHook : public torch::autograd::FunctionPreHook {
 public:
  PreHook(AccumulationListener& listener, std::size_t index) : listener_(listener), index_(index) {}
  const AccumulationListener& listener() const { return listener_; }
  variable_list operator()(const variable_list& gradients) override {
    return listener_.before_accumulation(index_, gradients);
  }

 private:
  AccumulationListener& listener_;
  const std::size_t index_;
};

// Runs after the accumulation, when `.grad` holds the gradient. It serves passes of libtorch's engine.
class PostHook : public torch::autograd::FunctionPostHook {
 public:
  PostHook(AccumulationListener& listener, std::size_t index) : listener_(listener), index_(index) {}
  const AccumulationListener& listener() const { return listener_; }
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    listener_.on_accumulated(index_);
    return outputs;
  }

 private:
  AccumulationListener& listener_;
  const std::size_t index_;
};

}  // namespace

AccumulationHooks::AccumulationHooks(AccumulationListener& listener, std::vector<at::Tensor> parameters)
    : listener_(listener), parameters_(std::move(parameters)) {
  add();
}

void AccumulationHooks::renew() {
  remove();
  add();
}

void AccumulationHooks::add() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    nodes_.push_back(torch::autograd::impl::grad_accumulator(parameters_[i]));
    nodes_.back()->add_pre_hook(std::make_unique<PreHook>(listener_, i));
    nodes_.back()->add_post_hook(std::make_unique<PostHook>(listener_, i));
  }
}

// A module may outlive its wrapper, and several wrappers may share parameters. So only the hooks of this
// listener are removed.
void AccumulationHooks::remove() {
  for (const std::shared_ptr<Node>& node : nodes_) {
    std::erase_if(node->pre_hooks(), [this](const auto& hook) {
      const auto* mine = dynamic_cast<const PreHook*>(hook.get());
      return mine != nullptr && &mine->listener() == &listener_;
    });
    std::erase_if(node->post_hooks(), [this](const auto& hook) {
      const auto* mine = dynamic_cast<const PostHook*>(hook.get());
      return mine != nullptr && &mine->listener() == &listener_;
    });
  }
  nodes_.clear();
}

std::vector<const Node*> reachable_nodes(const std::vector<std::weak_ptr<Node>>& from) {
  HashSet<const Node*> seen;
  std::vector<const Node*> open, all;
  const auto visit = [&](const Node* node) {
    if (node == nullptr || !seen.insert(node).second) return;
    open.push_back(node);
    all.push_back(node);
  };
  // The pointers stay valid: the pass that runs keeps the graph alive.
  for (const std::weak_ptr<Node>& each : from) visit(each.lock().get());
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    for (const torch::autograd::Edge& edge : node->next_edges()) visit(edge.function.get());
  }
  return all;
}

}  // namespace gradwire::data_parallel
