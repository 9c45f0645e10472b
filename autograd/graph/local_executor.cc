#include "gradwire/autograd/graph/local_executor.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"

namespace gradwire::autograd {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::InputBuffer;
using torch::autograd::Node;
using torch::autograd::variable_list;

// FailedPrecondition where the graph leaves the context.
absl::Status check_reached(const RecvNode& node, const GraphOptions& options) {
  if (node.context() != options.context) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the graph of a backward pass in the autograd context ", rpc::to_string(options.context),
        " reaches a tensor that worker \"", node.sender().name, "\" sent in the context ",
        rpc::to_string(node.context()), ": detach() it where it passes from one context to the other"));
  }
  if (node.self() != options.self) {
    return absl::FailedPreconditionError(
        absl::StrCat("the graph of a backward pass in the autograd context ", rpc::to_string(options.context),
                     " reaches a tensor that another agent of this process received from worker \"",
                     node.sender().name, "\""));
  }
  return absl::OkStatus();
}

// InvalidArgument where these are not the gradients of the tensors that are marked.
absl::Status check_marked(const variable_list& gradients, const Flags& marked, uint64_t message) {
  if (gradients.size() != marked.size()) {
    return absl::InvalidArgumentError(absl::StrCat(gradients.size(), " gradients came for the ",
                                                   marked.size(), " tensors of message ", message));
  }
  for (std::size_t i = 0; i < marked.size(); ++i) {
    if (gradients[i].defined() && !marked[i]) {
      return absl::InvalidArgumentError(
          absl::StrCat("a gradient came for tensor ", i, " of message ", message, ", which was not marked"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status LocalExecutor::add_inputs(const std::vector<at::Tensor>& inputs) {
  if (!records_.empty() || !sent_.empty())
    return absl::FailedPreconditionError("inputs of a backward pass came after it had begun");
  for (const at::Tensor& input : inputs) {
    const Edge edge = torch::autograd::impl::gradient_edge(input);
    captures_[edge.function.get()].emplace_back(edge.input_nr, input);
    // Only the graph, if at all, holds the node of a leaf.
    captured_.push_back(edge.function);
  }
  return absl::OkStatus();
}

absl::StatusOr<LocalExecutor::Reach> LocalExecutor::mark_roots(edge_list roots) {
  roots_ = std::move(roots);
  ++counted_;
  Reach reach;
  for (uint32_t i = 0; i < roots_.size(); ++i)
    count(roots_[i], {From::What::kRoot, roots_[i].input_nr, 0, 0, i}, reach);
  GRADWIRE_RETURN_IF_ERROR(walk(reach));
  return reach;
}

absl::StatusOr<LocalExecutor::Reach> LocalExecutor::mark_outputs(const std::shared_ptr<SendNode>& node,
                                                                 const std::vector<uint32_t>& outputs) {
  auto [found, is_new] = sent_.try_emplace(node->message());
  Sent& sent = found->second;
  if (is_new) {
    sent.node = node;
    sent.marked.resize(node->num_outputs());
    sent.needed.resize(node->num_outputs());
    ++counted_;
  }
  Reach reach;
  for (uint32_t output : outputs) {
    if (output >= sent.marked.size()) {
      return absl::InvalidArgumentError(absl::StrCat("message ", node->message(), " has ", sent.marked.size(),
                                                     " tensors that require grad, not ", output + 1));
    }
    if (sent.marked[output]) continue;
    sent.marked[output] = true;
    const Edge& edge = node->next_edge(output);
    count(edge, {From::What::kSent, edge.input_nr, 0, node->message(), output}, reach);
  }
  GRADWIRE_RETURN_IF_ERROR(walk(reach));
  return reach;
}

absl::StatusOr<LocalExecutor::Reach> LocalExecutor::need_outputs(uint64_t sender, uint64_t message,
                                                                 const std::vector<uint32_t>& outputs) {
  auto found = recv_records_.find({sender, message});
  if (found == recv_records_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("message ", message, " was not marked from here"));
  }
  Record& record = records_[found->second];
  for (uint32_t output : outputs) {
    if (output >= record.marked.size() || !record.marked[output]) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", output, " of message ", message, " was not marked from here"));
    }
    if (record.needed_outputs[output]) continue;
    const bool was_live = is_live(record, output);
    record.needed_outputs[output] = true;
    if (was_live) continue;
    for (const Incoming& each : record.incoming) {
      if (each.from.input == output) needs_.push_back(each.from);
    }
  }
  Reach reach;
  follow_needs(reach);
  return reach;
}

bool LocalExecutor::is_live(const Record& record, uint32_t input) const {
  if (record.kind != Kind::kRecv) return record.needed || record.captured;
  if (record.needed_outputs[input]) return true;
  if (!record.captured) return false;
  const auto& captures = captures_.at(record.node);
  return std::any_of(captures.begin(), captures.end(),
                     [input](const auto& capture) { return capture.first == input; });
}

bool LocalExecutor::is_live(const From& from) const {
  switch (from.what) {
    case From::What::kRecord:
      return records_[from.record].needed;
    case From::What::kSent:
      return sent_.at(from.message).needed[from.output];
    case From::What::kRoot:
      break;
  }
  return true;
}

void LocalExecutor::need(const From& from, Reach& reach) {
  if (from.what == From::What::kRecord) {
    Record& record = records_[from.record];
    if (std::exchange(record.needed, true)) return;
    // The edges that lead to an input have been followed already.
    if (record.captured) return;
    for (const Incoming& each : record.incoming) needs_.push_back(each.from);
  } else if (from.what == From::What::kSent) {
    Sent& sent = sent_.at(from.message);
    if (sent.needed[from.output]) return;
    sent.needed[from.output] = true;
    auto found = std::find_if(reach.needed.begin(), reach.needed.end(),
                              [&](const Needed& needed) { return needed.node == sent.node; });
    if (found == reach.needed.end()) found = reach.needed.insert(reach.needed.end(), {sent.node, {}});
    found->outputs.push_back(from.output);
  }
}

void LocalExecutor::follow_needs(Reach& reach) {
  while (!needs_.empty()) {
    const From from = needs_.back();
    needs_.pop_back();
    need(from, reach);
  }
  for (Needed& needed : reach.needed) std::sort(needed.outputs.begin(), needed.outputs.end());
}

void LocalExecutor::begin_run() {
  if (std::exchange(runs_, true) || !options_.inputs_only) return;
  counted_ = roots_.empty() ? 0 : 1;
  for (auto& [message, sent] : sent_) {
    sent.marked = sent.needed;
    if (std::find(sent.needed.begin(), sent.needed.end(), true) != sent.needed.end()) ++counted_;
  }
  for (Record& record : records_) {
    auto& incoming = record.incoming;
    const auto has_no_use = [&](const Incoming& each) {
      return !is_live(record, each.from.input) || !is_live(each.from);
    };
    incoming.erase(std::remove_if(incoming.begin(), incoming.end(), has_no_use), incoming.end());
    record.missing = static_cast<uint32_t>(incoming.size());
    if (record.missing > 0) ++counted_;
  }
}

uint32_t LocalExecutor::visit(const Edge& edge) {
  Node* const node = edge.function.get();
  auto [found, is_new] = index_.try_emplace(node, static_cast<uint32_t>(records_.size()));
  if (!is_new) return found->second;
  Record& record = records_.emplace_back();
  record.node = node;
  if (node->next_edges().empty()) {
    if (const auto* recv = dynamic_cast<const RecvNode*>(node)) {
      record.kind = Kind::kRecv;
      record.marked.resize(node->num_inputs());
      record.needed_outputs.resize(node->num_inputs());
      recv_records_.emplace(std::pair(recv->sender().incarnation, recv->message()), found->second);
    } else if (dynamic_cast<AccumulateGrad*>(node) != nullptr) {
      record.kind = Kind::kLeaf;
    }
  }
  record.captured = options_.inputs_only && captures_.contains(node);
  ++counted_;
  unwalked_.push_back(found->second);
  return found->second;
}

void LocalExecutor::count(const Edge& edge, From from, Reach& reach) {
  if (!edge.is_valid()) return;
  Record& record = records_[visit(edge)];
  ++record.missing;
  if (options_.inputs_only || !options_.sum_as_they_arrive) {
    record.incoming.push_back({from, Incoming::State::kAwaited, {}});
    record.ordered = false;
  }
  if (options_.inputs_only && is_live(record, edge.input_nr)) needs_.push_back(from);
  if (record.kind != Kind::kRecv || record.marked[edge.input_nr]) return;
  record.marked[edge.input_nr] = true;
  auto [found, is_new] = reach_index_.try_emplace(record.node, reach.marked.size());
  if (is_new) reach.marked.push_back({std::static_pointer_cast<RecvNode>(edge.function), {}});
  reach.marked[found->second].outputs.push_back(edge.input_nr);
}

absl::Status LocalExecutor::walk(Reach& reach) {
  while (!unwalked_.empty()) {
    const uint32_t walked = unwalked_.back();
    unwalked_.pop_back();
    const edge_list& edges = records_[walked].node->next_edges();
    for (uint32_t i = 0; i < edges.size(); ++i)
      count(edges[i], {From::What::kRecord, edges[i].input_nr, walked, 0, i}, reach);
  }
  reach_index_.clear();
  follow_needs(reach);
  for (Reached& reached : reach.marked) {
    std::sort(reached.outputs.begin(), reached.outputs.end());
    GRADWIRE_RETURN_IF_ERROR(check_reached(*reached.node, options_));
  }
  return absl::OkStatus();
}

absl::Status LocalExecutor::deliver_roots(variable_list gradients) {
  try {
    for (uint32_t i = 0; i < roots_.size(); ++i) {
      deliver(roots_[i], std::move(gradients[i]), {From::What::kRoot, roots_[i].input_nr, 0, 0, i});
    }
  } catch (...) {
    return with_context(status_from_exception(std::current_exception()), "the gradients of the roots");
  }
  return absl::OkStatus();
}

absl::Status LocalExecutor::deliver_message(uint64_t message, variable_list gradients) {
  auto found = sent_.find(message);
  if (found == sent_.end() || found->second.arrived) {
    return absl::InvalidArgumentError(absl::StrCat("no gradients are awaited for message ", message));
  }
  Sent& sent = found->second;
  const edge_list& edges = sent.node->next_edges();
  // A bit mask names them, so there are up to seven undefined ones too many.
  while (gradients.size() > edges.size() && !gradients.back().defined()) gradients.pop_back();
  GRADWIRE_RETURN_IF_ERROR(check_marked(gradients, sent.marked, message));
  try {
    validate_gradients(edges, gradients, sent.node->name());
    sent.arrived = true;
    for (uint32_t i = 0; i < edges.size(); ++i) {
      if (!sent.marked[i]) continue;
      deliver(edges[i], std::move(gradients[i]), {From::What::kSent, edges[i].input_nr, 0, message, i});
    }
  } catch (...) {
    return with_context(status_from_exception(std::current_exception()),
                        absl::StrCat("the gradients of message ", message));
  }
  return absl::OkStatus();
}

void LocalExecutor::deliver(const Edge& edge, at::Tensor gradient, const From& from) {
  if (!edge.is_valid()) return;
  auto found = index_.find(edge.function.get());
  if (found == index_.end()) return;
  Record& record = records_[found->second];
  if (options_.inputs_only && !is_live(record, edge.input_nr)) return;
  if (options_.sum_as_they_arrive || record.incoming.size() < 2) {
    add(record, edge.input_nr, std::move(gradient));
  } else {
    add_in_order(record, from, std::move(gradient));
  }
  if (--record.missing == 0) ready_.push({record.node->sequence_nr(), order_++, found->second});
}

void LocalExecutor::add(Record& record, uint32_t input, at::Tensor gradient) {
  if (!gradient.defined()) return;
  if (record.buffer.buffer.empty()) record.buffer = InputBuffer(record.node->num_inputs());
  record.buffer.add(input, std::move(gradient), std::nullopt, std::nullopt, record.node);
}

void LocalExecutor::add_in_order(Record& record, const From& from, at::Tensor gradient) {
  using State = Incoming::State;
  auto& all = record.incoming;
  if (!std::exchange(record.ordered, true)) {
    std::sort(all.begin(), all.end(),
              [&](const Incoming& a, const Incoming& b) { return adds_before(a.from, b.from); });
  }
  auto each = std::lower_bound(all.begin(), all.end(), from,
                               [this](const Incoming& a, const From& b) { return adds_before(a.from, b); });
  // Only where a peer sends what belongs to the wave after the wave.
  if (each == all.end() || each->from != from) return add(record, from.input, std::move(gradient));
  each->gradient = std::move(gradient);
  each->state = State::kHeld;
  const auto is_first = [&] { return each == all.begin() || (each - 1)->from.input != each->from.input; };
  if (!is_first() && (each - 1)->state != State::kAdded) return;
  do {
    each->state = State::kAdded;
    add(record, from.input, std::exchange(each->gradient, at::Tensor()));
    ++each;
  } while (each != all.end() && !is_first() && each->state == State::kHeld);
}

const Timeline::Place& LocalExecutor::place(const From& from) {
  const Node* node = nullptr;
  std::optional<Timeline::Place>* known = nullptr;
  if (from.what == From::What::kRecord) {
    node = records_[from.record].node;
    known = &records_[from.record].place;
  } else {
    Sent& sent = sent_.at(from.message);
    node = sent.node.get();
    known = &sent.place;
  }
  if (!known->has_value()) {
    *known = options_.timeline == nullptr ? Timeline::Place{nullptr, {node->thread_id(), node->sequence_nr()}}
                                          : options_.timeline->place(node->thread_id(), node->sequence_nr());
  }
  return **known;
}

bool LocalExecutor::adds_before(const From& a, const From& b) {
  if (a.input != b.input) return a.input < b.input;
  const bool a_is_root = a.what == From::What::kRoot;
  const bool b_is_root = b.what == From::What::kRoot;
  if (a_is_root || b_is_root) return a_is_root && (!b_is_root || a.output < b.output);
  const bool same_node = a.what == b.what && a.record == b.record && a.message == b.message;
  if (!same_node) {
    const Timeline::Place& in_a = place(a);
    const Timeline::Place& in_b = place(b);
    if (Timeline::older(in_b, in_a)) return true;
    if (Timeline::older(in_a, in_b)) return false;
    // Not for nodes of one process.
    return std::tuple(a.what, a.record, a.message) < std::tuple(b.what, b.record, b.message);
  }
  // A node's gradients are added in the order of its edges. A send node stands for one node for each tensor.
  return a.what == From::What::kSent ? a.output > b.output : a.output < b.output;
}

std::optional<LocalExecutor::Task> LocalExecutor::next() {
  if (ready_.empty()) return std::nullopt;
  std::optional<Task> next(std::in_place);
  Task& task = *next;
  task.record = ready_.top().record;
  ready_.pop();
  Record& record = records_[task.record];
  task.node = record.node;
  task.runs = !options_.inputs_only || record.needed;
  if (record.kind == Kind::kRecv) {
    task.live = record.marked;
    task.shipped = record.marked;
    if (options_.inputs_only) {
      for (uint32_t i = 0; i < task.live.size(); ++i) task.live[i] = is_live(record, i);
      task.shipped = record.needed_outputs;
      task.runs = std::find(task.shipped.begin(), task.shipped.end(), true) != task.shipped.end();
    }
    if (task.runs) task.recv = static_cast<RecvNode*>(record.node);
  }
  if (auto captured = captures_.find(record.node); captured != captures_.end()) {
    task.captures = &captured->second;
  }
  if (record.kind == Kind::kLeaf) task.leaf = &static_cast<AccumulateGrad*>(record.node)->variable;
  record.incoming = {};
  if (record.buffer.buffer.empty()) {
    task.inputs.resize(record.node->num_inputs());
  } else {
    task.inputs = std::move(record.buffer.buffer);
    record.buffer = InputBuffer(0);
  }
  return next;
}

void LocalExecutor::finished(Task& task) {
  if (task.recv != nullptr || task.leaf != nullptr) return;
  const edge_list& edges = task.node->next_edges();
  const std::size_t n = std::min(edges.size(), task.outputs.size());
  for (uint32_t i = 0; i < n; ++i) {
    deliver(edges[i], std::move(task.outputs[i]),
            {From::What::kRecord, edges[i].input_nr, task.record, 0, i});
  }
}

}  // namespace gradwire::autograd
