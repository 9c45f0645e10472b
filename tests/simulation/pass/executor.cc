#include "gradwire/tests/simulation/pass/executor.h"

#include <algorithm>
#include <utility>

namespace gradwire::pass_simulation {

using Kind = GraphNode::Kind;

void Executor::prepare() {
  if (records_.empty()) records_.resize(graph_.nodes.size());
  if (sent_.empty()) sent_.resize(graph_.messages.size());
}

void Executor::add_input(const Edge& input) {
  prepare();
  records_[input.node].captured |= 1 << input.input;
}

void Executor::mark_roots(const std::vector<Edge>& roots, Reach& reach) {
  prepare();
  roots_ = roots;
  ++counted_;
  for (const Edge& root : roots_) count(root, {From::What::kRoot, root.input, 0, 0}, reach);
  walk(reach);
}

void Executor::mark_outputs(const Tensors& tensors, Reach& reach) {
  prepare();
  Sent& sent = sent_[tensors.message];
  if (!std::exchange(sent.known, true)) ++counted_;
  const std::vector<Edge>& edges = graph_.messages[tensors.message].tensors;
  for (int i = 0; i < static_cast<int>(edges.size()); ++i) {
    if (!(tensors.mask & 1 << i) || sent.marked & 1 << i) continue;
    sent.marked |= 1 << i;
    count(edges[i], {From::What::kSent, edges[i].input, tensors.message, i}, reach);
  }
  walk(reach);
}

void Executor::count(const Edge& edge, const From& from, Reach& reach) {
  Record& record = records_[edge.node];
  if (!std::exchange(record.visited, true)) {
    ++counted_;
    unwalked_.push_back(edge.node);
  }
  ++record.missing;
  if (inputs_only_) {
    record.from.push_back(from);
    if (is_live(edge.node, edge.input)) needs_.push_back(from);
  }
  const GraphNode& node = graph_.nodes[edge.node];
  if (node.kind != Kind::kRecv || record.marked & 1 << edge.input) return;
  record.marked |= 1 << edge.input;
  add(reach.marked, node.message, edge.input);
}

void Executor::add(std::vector<Tensors>& list, int message, int output) {
  auto found =
      std::find_if(list.begin(), list.end(), [&](const Tensors& each) { return each.message == message; });
  if (found == list.end()) found = list.insert(list.end(), {message, 0});
  found->mask |= 1 << output;
}

void Executor::walk(Reach& reach) {
  while (!unwalked_.empty()) {
    const int walked = unwalked_.back();
    unwalked_.pop_back();
    for (const Edge& edge : graph_.nodes[walked].next) {
      count(edge, {From::What::kRecord, edge.input, walked, 0}, reach);
    }
  }
  follow_needs(reach);
}

bool Executor::need_outputs(const Tensors& tensors, Reach& reach) {
  prepare();
  const int node = graph_.messages[tensors.message].recv;
  Record& record = records_[node];
  if ((record.marked & tensors.mask) != tensors.mask) return false;
  for (int i = 0; i < 8; ++i) {
    if (!(tensors.mask & 1 << i) || record.needed_outputs & 1 << i) continue;
    const bool was_live = is_live(node, i);
    record.needed_outputs |= 1 << i;
    if (was_live) continue;
    for (const From& from : record.from) {
      if (from.input == i) needs_.push_back(from);
    }
  }
  follow_needs(reach);
  return true;
}

bool Executor::is_live(int node, int input) const {
  const Record& record = records_[node];
  if (record.captured & 1 << input) return true;
  return graph_.nodes[node].kind == Kind::kRecv ? (record.needed_outputs & 1 << input) != 0 : record.needed;
}

bool Executor::is_live(const From& from) const {
  switch (from.what) {
    case From::What::kRecord:
      return records_[from.index].needed;
    case From::What::kSent:
      return (sent_[from.index].needed & 1 << from.output) != 0;
    case From::What::kRoot:
      break;
  }
  return true;
}

void Executor::follow_needs(Reach& reach) {
  while (!needs_.empty()) {
    const From from = needs_.back();
    needs_.pop_back();
    if (from.what == From::What::kRecord) {
      Record& record = records_[from.index];
      if (std::exchange(record.needed, true) || record.captured != 0) continue;
      needs_.insert(needs_.end(), record.from.begin(), record.from.end());
    } else if (from.what == From::What::kSent) {
      Sent& sent = sent_[from.index];
      if (sent.needed & 1 << from.output) continue;
      sent.needed |= 1 << from.output;
      add(reach.needed, from.index, from.output);
    }
  }
}

void Executor::begin_run() {
  if (std::exchange(runs_, true) || !inputs_only_) return;
  prepare();
  counted_ = roots_.empty() ? 0 : 1;
  for (Sent& sent : sent_) {
    sent.marked = sent.needed;
    if (sent.needed != 0) ++counted_;
  }
  for (std::size_t n = 0; n < records_.size(); ++n) {
    Record& record = records_[n];
    record.missing = 0;
    for (const From& from : std::exchange(record.from, {})) {
      if (is_live(static_cast<int>(n), from.input) && is_live(from)) ++record.missing;
    }
    if (record.missing > 0) ++counted_;
  }
}

void Executor::deliver_roots() {
  for (const Edge& root : roots_) deliver(root);
}

bool Executor::deliver_message(const Tensors& tensors) {
  prepare();
  Sent& sent = sent_[tensors.message];
  if (!sent.known || sent.arrived || (tensors.mask & ~sent.marked) != 0) return false;
  sent.arrived = true;
  const std::vector<Edge>& edges = graph_.messages[tensors.message].tensors;
  for (std::size_t i = 0; i < edges.size(); ++i) {
    if (sent.marked & 1 << i) deliver(edges[i]);
  }
  return true;
}

void Executor::deliver(const Edge& edge) {
  Record& record = records_[edge.node];
  if (!record.visited || (inputs_only_ && !is_live(edge.node, edge.input))) return;
  if (--record.missing == 0) ready_.push_back(edge.node);
}

bool Executor::next(Task& task, Random& random) {
  if (ready_.empty()) return false;
  std::swap(ready_[random.below(ready_.size())], ready_.back());
  task = {ready_.back(), 0};
  ready_.pop_back();
  if (graph_.nodes[task.node].kind == Kind::kRecv) {
    const Record& record = records_[task.node];
    task.shipped = inputs_only_ ? record.needed_outputs : record.marked;
  }
  return true;
}

uint8_t Executor::kept(const Task& task) const {
  if (!inputs_only_) return graph_.nodes[task.node].kind == Kind::kLeaf ? 1 : 0;
  const Record& record = records_[task.node];
  return graph_.nodes[task.node].kind == Kind::kRecv ? record.captured & record.marked : record.captured;
}

void Executor::finished(const Task& task) {
  if (inputs_only_ && !records_[task.node].needed) return;
  for (const Edge& edge : graph_.nodes[task.node].next) deliver(edge);
}

}  // namespace gradwire::pass_simulation
