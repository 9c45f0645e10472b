// LocalExecutor: marking, delivering, and choosing the next node. run_node() in node_task.cc runs a node.
// Marking: count() counts the gradient of one edge. visit() makes the record of a new node and adds it to
// `unwalked_`; walk() then counts the edges of that node.
// Running: deliver() brings the gradient of one edge to its record and decreases `missing`. At 0 the node
// becomes ready; next() returns it, and finished() delivers its outputs.

#include "gradwire/autograd/graph/local_executor.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/device/streams.h"

namespace gradwire::autograd {

using torch::autograd::InputBuffer;
using torch::autograd::variable_list;

// Node::stream() asks for the accelerator of the process, so it is called only if an input is not on the CPU.
NodeInputs::NodeInputs(torch::autograd::Node& node) : node_(&node) {
  for (uint32_t i = 0; i < node.num_inputs(); ++i) {
    if (node.input_metadata(i).device().is_cpu()) continue;
    stream_ = node.stream();
    return;
  }
}

// The buffer makes the stream on which it adds wait for `ready`, and records the memory for that stream. It
// needs its lists of streams and events only if a gradient has streams.
//
// Problem: the buffer adds in place if no other tensor of the host uses the memory. Nodes may share a
// gradient, and those that have run on the host need not have read it on their streams, so an addition in
// place on another stream would change what they read. libtorch's engine has this race. Here a second
// reference to both summands makes the buffer put the sum into new memory. The sum has the same bits.
void NodeInputs::add(uint32_t input, at::Tensor gradient, const std::optional<c10::Stream>& ready) {
  if (!gradient.defined()) return;
  const std::size_t inputs = node_->num_inputs();
  if (buffer_.buffer.empty()) buffer_ = InputBuffer(variable_list(inputs));
  if (ready && buffer_.ready_streams.empty()) {
    buffer_.opt_accum_streams.resize(inputs);
    buffer_.ready_events.resize(inputs);
    buffer_.ready_streams.resize(inputs);
  }
  const at::Tensor not_in_place[] = {ready ? buffer_.buffer[input] : at::Tensor(),
                                     ready ? gradient : at::Tensor()};
  buffer_.add(input, std::move(gradient), ready, stream_, node_);
}

void NodeInputs::move_to(NodeTask& task) {
  if (stream_ || !buffer_.ready_streams.empty()) {
    task.streams = std::make_unique<TaskStreams>(
        TaskStreams{stream_, std::move(buffer_.ready_streams), std::move(buffer_.ready_events)});
  }
  if (buffer_.buffer.empty()) {
    task.inputs.resize(node_->num_inputs());
  } else {
    task.inputs = std::move(buffer_.buffer);
    buffer_ = InputBuffer(0);
  }
}

// A node has its outputs ready on its own stream, also those on other devices (libtorch's "stream sync
// contract"). A gradient from outside, or of a node that has no stream because its inputs are on the CPU, is
// ready on the current stream of this thread. The stream must be determined when the gradient is delivered: a
// gradient that is held may be added by another thread.
std::optional<c10::Stream> ready_stream(const at::Tensor& gradient,
                                        const std::optional<c10::Stream>& producer) {
  if (!device::has_streams(gradient)) return std::nullopt;
  return producer ? producer : device::current_stream(gradient.device());
}

namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;

// FailedPrecondition if the graph leaves the context at this node.
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

// InvalidArgument if these are not the gradients of the tensors that are marked.
absl::Status check_marked(const variable_list& gradients, const Flags& marked, uint64_t message) {
  if (gradients.size() != marked.size()) {
    return absl::InvalidArgumentError(absl::StrCat("malformed gradients of message ", message, ": got ",
                                                   gradients.size(), ", expected ", marked.size(),
                                                   ", one for each tensor that requires grad"));
  }
  for (std::size_t i = 0; i < marked.size(); ++i) {
    if (gradients[i].defined() && !marked[i]) {
      return absl::InvalidArgumentError(absl::StrCat("unexpected gradient for tensor ", i, " of message ",
                                                     message, ": the tensor is not marked in this pass"));
    }
  }
  return absl::OkStatus();
}

absl::Status no_such_tensor(uint64_t message, uint32_t tensor, std::size_t tensors) {
  return absl::InvalidArgumentError(absl::StrCat("cannot mark tensor ", tensor, " of message ", message,
                                                 ": the message has ", tensors,
                                                 " tensors that require grad"));
}

absl::Status unexpected_needed(uint64_t message) {
  return absl::InvalidArgumentError(
      absl::StrCat("unexpected NEEDED for message ", message, ": this worker did not mark the message"));
}

absl::Status unexpected_needed(uint64_t message, uint32_t tensor) {
  return absl::InvalidArgumentError(absl::StrCat("unexpected NEEDED for tensor ", tensor, " of message ",
                                                 message, ": this worker did not mark the tensor"));
}

absl::Status unexpected_gradients(uint64_t message) {
  return absl::InvalidArgumentError(
      absl::StrCat("unexpected gradients of message ", message,
                   ": the message is not marked in this pass, or its gradients have arrived already"));
}

}  // namespace

absl::Status LocalExecutor::add_inputs(const std::vector<at::Tensor>& inputs) {
  if (!records_.empty() || !sent_.empty())
    return absl::FailedPreconditionError(
        "cannot add inputs to a backward pass: the pass has already marked tensors");
  for (const at::Tensor& input : inputs) {
    const Edge edge = torch::autograd::impl::gradient_edge(input);
    captures_[edge.function.get()].emplace_back(edge.input_nr, input);
    // Keeps the node alive: otherwise only the graph holds the node of a leaf, if the leaf is in the graph.
    captured_.push_back(edge.function);
  }
  return absl::OkStatus();
}

// `counted_` has one event for the delivery of the roots, one for each message whose gradients will arrive,
// and one for each node that will run. The pass ends when all of these events have happened, so an event
// must be counted before it can happen.
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
    if (output >= sent.marked.size()) return no_such_tensor(node->message(), output, sent.marked.size());
    if (sent.marked[output]) continue;
    sent.marked[output] = true;
    const Edge& edge = node->next_edge(output);
    count(edge, {From::What::kSent, edge.input_nr, 0, node->message(), output}, reach);
  }
  GRADWIRE_RETURN_IF_ERROR(walk(reach));
  return reach;
}

// A NEEDED names outputs of a recv node here. If an output was live before, because an input is captured
// there, count() has already followed its edges. Otherwise the edges that lead to this output, and only
// these, are followed back.
absl::StatusOr<LocalExecutor::Reach> LocalExecutor::need_outputs(uint64_t sender, uint64_t message,
                                                                 const std::vector<uint32_t>& outputs) {
  auto found = recv_records_.find({sender, message});
  if (found == recv_records_.end()) return unexpected_needed(message);
  Record& record = records_[found->second];
  for (uint32_t output : outputs) {
    if (output >= record.marked.size() || !record.marked[output]) return unexpected_needed(message, output);
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

// A recv node has one input for each tensor of its message, and each may be needed by itself. Any other node
// is needed as a whole.
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

// Marks the origin of an edge as needed, once, and continues towards the roots:
// - from another record: all edges that lead to its node are needed too;
// - from a send node: the gradient will come from the receiver of the message, which gets a NEEDED;
// - from a root: the gradient is always there.
void LocalExecutor::need(const From& from, Reach& reach) {
  if (from.what == From::What::kRecord) {
    Record& record = records_[from.record];
    if (std::exchange(record.needed, true)) return;
    // The edges that lead to a captured input were followed when they were counted.
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

// `needs_` is a stack of its own, as `unwalked_` is for walk(). A recursive function would overflow the
// thread's stack, because a graph can be a chain of any length.
void LocalExecutor::follow_needs(Reach& reach) {
  while (!needs_.empty()) {
    const From from = needs_.back();
    needs_.pop_back();
    need(from, reach);
  }
  for (Needed& needed : reach.needed) std::sort(needed.outputs.begin(), needed.outputs.end());
}

// take_counted() has returned 0 so far, so no event is counted twice.
// During the marking every node and message was counted. With inputs_only, now that all needs are known,
// gradients that no input depends on are removed and the rest is counted again.
void LocalExecutor::begin_run() {
  if (std::exchange(runs_, true) || !options_.inputs_only) return;
  counted_ = roots_.empty() ? 0 : 1;
  for (auto& [message, sent] : sent_) {
    sent.marked = sent.needed;
    if (std::find(sent.needed.begin(), sent.needed.end(), true) != sent.needed.end()) ++counted_;
  }
  for (Record& record : records_) {
    auto& incoming = record.incoming;
    const auto is_unused = [&](const Incoming& each) {
      return !is_live(record, each.from.input) || !is_live(each.from);
    };
    incoming.erase(std::remove_if(incoming.begin(), incoming.end(), is_unused), incoming.end());
    record.missing = static_cast<uint32_t>(incoming.size());
    if (record.missing > 0) ++counted_;
  }
}

// A recv node and the node of a leaf have no edges. So the slow dynamic_cast is needed only at the ends of
// the graph.
uint32_t LocalExecutor::visit(const Edge& edge) {
  Node* const node = edge.function.get();
  auto [found, is_new] = index_.try_emplace(node, static_cast<uint32_t>(records_.size()));
  if (!is_new) return found->second;
  Record& record = records_.emplace_back();
  record.node = node;
  record.inputs = NodeInputs(*node);
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

// `incoming` is recorded only if something will use it: the order of additions, or begin_run(), which
// removes the edges that no input needs. Without it a record needs no memory for each edge.
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

// The deliver functions count down the edges that the walk has counted. When the last gradient of a record
// has arrived, its node becomes ready.
absl::Status LocalExecutor::deliver_roots(variable_list gradients) {
  try {
    for (uint32_t i = 0; i < roots_.size(); ++i) {
      deliver(roots_[i], std::move(gradients[i]), {From::What::kRoot, roots_[i].input_nr, 0, 0, i});
    }
  } catch (...) {
    return caught("the gradients of the roots");
  }
  return absl::OkStatus();
}

// The gradients come from a peer, which may be wrong. Steps:
// 1. Refuse a message that was not marked or that has arrived before: its gradients are not counted, so
//    `missing` would become wrong.
// 2. Refuse gradients that do not fit the tensors that were sent. No record has changed up to here.
// 3. Deliver one gradient, which may be undefined, for each marked tensor.
absl::Status LocalExecutor::deliver_message(uint64_t message, variable_list gradients) {
  auto found = sent_.find(message);
  if (found == sent_.end() || found->second.arrived) return unexpected_gradients(message);
  Sent& sent = found->second;
  const edge_list& edges = sent.node->next_edges();
  // A bit mask of whole bytes names the gradients, so up to seven undefined ones may be at the end.
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
    return caught(absl::StrCat("the gradients of message ", message));
  }
  return absl::OkStatus();
}

// A node that is not in `index_` was not marked, so no gradient of it is expected. A single gradient has no
// order, so it is added at once.
void LocalExecutor::deliver(const Edge& edge, at::Tensor gradient, const From& from) {
  if (!edge.is_valid()) return;
  auto found = index_.find(edge.function.get());
  if (found == index_.end()) return;
  Record& record = records_[found->second];
  if (options_.inputs_only && !is_live(record, edge.input_nr)) return;
  std::optional<c10::Stream> ready;
  if (gradient.defined() && !gradient.is_cpu()) {
    const bool from_node = from.what == From::What::kRecord;
    ready = ready_stream(gradient, from_node ? records_[from.record].inputs.stream() : std::nullopt);
  }
  if (options_.sum_as_they_arrive || record.incoming.size() < 2) {
    record.inputs.add(edge.input_nr, std::move(gradient), ready);
  } else {
    add_in_order(record, from, std::move(gradient), ready);
  }
  if (--record.missing == 0) ready_.push({record.node->sequence_nr(), order_++, found->second});
}

// Gradients for one input of the record must be added in the order of `incoming`, but arrive in any order.
// 1. Sort `incoming` when the first gradient arrives: then all edges have been counted.
// 2. Store the gradient in its place as held.
// 3. If all before it, for the same input, have been added: add it, and all held ones that follow directly.
void LocalExecutor::add_in_order(Record& record, const From& from, at::Tensor gradient,
                                 const std::optional<c10::Stream>& ready) {
  using State = Incoming::State;
  auto& all = record.incoming;
  if (!std::exchange(record.ordered, true)) {
    std::sort(all.begin(), all.end(),
              [&](const Incoming& a, const Incoming& b) { return adds_before(a.from, b.from); });
  }
  auto each = std::lower_bound(all.begin(), all.end(), from,
                               [this](const Incoming& a, const From& b) { return adds_before(a.from, b); });
  // The edge is missing only if a peer sends marks after the wave has ended.
  if (each == all.end() || each->from != from)
    return record.inputs.add(from.input, std::move(gradient), ready);
  each->gradient = std::move(gradient);
  each->ready = ready;
  each->state = State::kHeld;
  const auto is_first = [&] { return each == all.begin() || (each - 1)->from.input != each->from.input; };
  if (!is_first() && (each - 1)->state != State::kAdded) return;
  do {
    each->state = State::kAdded;
    record.inputs.add(from.input, std::exchange(each->gradient, at::Tensor()), each->ready);
    ++each;
  } while (each != all.end() && !is_first() && each->state == State::kHeld);
}

const Timeline::Position& LocalExecutor::place(const From& from) {
  const Node* node = nullptr;
  std::optional<Timeline::Position>* known = nullptr;
  if (from.what == From::What::kRecord) {
    node = records_[from.record].node;
    known = &records_[from.record].place;
  } else {
    Sent& sent = sent_.at(from.message);
    node = sent.node.get();
    known = &sent.place;
  }
  if (!known->has_value()) {
    *known = options_.timeline == nullptr
                 ? Timeline::Position{nullptr, {node->thread_id(), node->sequence_nr()}}
                 : options_.timeline->place(node->thread_id(), node->sequence_nr());
  }
  return **known;
}

// The order in which libtorch's engine, which always runs the youngest ready node, would add gradients:
// 1. Gradients for a lower input first. The order between inputs has no effect on sums; it keeps the
//    gradients of an input together.
// 2. The gradients of the roots, in the order of the roots: no node has to run for them.
// 3. The youngest producer first.
// 4. Gradients of one producer by its outputs.
bool LocalExecutor::adds_before(const From& a, const From& b) {
  if (a.input != b.input) return a.input < b.input;
  const bool a_is_root = a.what == From::What::kRoot;
  const bool b_is_root = b.what == From::What::kRoot;
  if (a_is_root || b_is_root) return a_is_root && (!b_is_root || a.output < b.output);
  const bool same_node = a.what == b.what && a.record == b.record && a.message == b.message;
  if (!same_node) {
    const Timeline::Position& in_a = place(a);
    const Timeline::Position& in_b = place(b);
    if (Timeline::older(in_b, in_a)) return true;
    if (Timeline::older(in_a, in_b)) return false;
    // Positions of different nodes are equal only if a peer has sent malformed ones.
    return std::tuple(a.what, a.record, a.message) < std::tuple(b.what, b.record, b.message);
  }
  // A node's gradients are added in the order of its edges. A send node stands for one node for each tensor.
  return a.what == From::What::kSent ? a.output > b.output : a.output < b.output;
}

// Moves the gradients from the record into the task: run() uses the task without a lock, while other threads
// deliver gradients to other records.
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
  if (record.inputs.stream()) streams_.add(*record.inputs.stream());
  record.inputs.move_to(task);
  return next;
}

// The gradients of a recv node are shipped, and those of a leaf kept, by the caller. A hook may have changed
// the number of outputs after they were validated, so the shorter list counts.
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
