#include "gradwire/tests/simulation/pass/world.h"

#include <utility>

namespace gradwire::pass_simulation {
namespace {

// Far more events than any schedule needs. A schedule with more events is a livelock.
constexpr uint64_t kMaxSteps = 20'000;
// After this many events no more messages are lost.
constexpr uint64_t kCalmAfter = 5000;

}  // namespace

World::World(uint64_t seed, simulation::CoverageTable* coverage, simulation::Trace* trace)
    : random_(seed), scenario_(random_), coverage_(coverage), trace_(trace) {}

const std::string& World::run() {
  plan();
  run_until_quiet();
  for (PassInfo& pass : passes_) {
    // In the fast mode the sender of a message that the roots do not depend on waits until the deadline.
    if (!violation_.empty() || !pass.begun || pass.completed || !workers_[pass.root].alive) continue;
    if (!pass.fast || !pass.expected->has_unused_message) {
      violate(absl::StrCat(name(pass), " never ends"));
      break;
    }
    trace("the deadline of ", name(pass), " is exceeded");
    pass.timed_out = true;
    abort(pass.part, absl::DeadlineExceededError("deadline exceeded"));
    run_until_quiet();
  }
  if (violation_.empty()) check_quiet();
  for (std::size_t c = 0; c < contexts_.size() && violation_.empty(); ++c)
    release_by_user(static_cast<int>(c));
  run_until_quiet();
  if (violation_.empty()) check_quiet();
  if (violation_.empty()) check_released();
  return violation_;
}

void World::plan() {
  workers_.resize(scenario_.workers);
  contexts_.resize(scenario_.contexts);
  passes_.reserve(scenario_.graphs * scenario_.passes);
  for (WorkerState& worker : workers_) worker.contexts.resize(contexts_.size());
  const int usual_origin = static_cast<int>(random_.below(workers_.size()));
  for (int c = 0; c < scenario_.contexts; ++c) {
    ContextInfo& context = contexts_[c];
    context.origin = random_.below(4) != 0 ? usual_origin : static_cast<int>(random_.below(workers_.size()));
    if (c >= scenario_.graphs) {
      scheduler_.add(random_.between(0, 5 * scenario_.delay), Event::Kind::kOpen, c);
      scheduler_.add(random_.between(0, 20 * scenario_.delay), Event::Kind::kRelease, c);
      continue;
    }
    open(c);
    context.graph = Graph::random({.workers = scenario_.workers,
                                   .origin = context.origin,
                                   .messages = scenario_.messages,
                                   .unknown = scenario_.unknown},
                                  random_);
    for (const GraphMessage& message : context.graph.messages) {
      touch(message.from, c, message.to);
      enter(message.to, c, message.from, Coverage::kForward);
    }
    plan_passes(c);
  }
  for (int i = 0; i < scenario_.stragglers; ++i) {
    scheduler_.add(random_.between(0, 20 * scenario_.delay), Event::Kind::kStraggle);
  }
}

void World::plan_passes(int c) {
  ContextInfo& context = contexts_[c];
  const std::size_t first = passes_.size();
  for (int i = 0; i < scenario_.passes; ++i) {
    PassInfo pass;
    pass.context = c;
    pass.root = context.origin;
    for (int tries = 0; tries < 4 && random_.below(3) == 0; ++tries) {
      const int other = static_cast<int>(random_.below(workers_.size()));
      if (workers_[other].contexts[c].live) pass.root = other;
    }
    pass.id = {incarnation(pass.root), 1000 + passes_.size()};
    pass.fast = random_.per_mille(scenario_.fast);
    pass.inputs_only = !pass.fast && random_.per_mille(scenario_.inputs);
    pass.roots = context.graph.random_roots(pass.root, random_);
    if (i > 0 && !scenario_.at_once) pass.after = static_cast<int>(passes_.size()) - 1;
    passes_.push_back(std::move(pass));
  }
  for (std::size_t p = first; p < passes_.size(); ++p) {
    PassInfo& pass = passes_[p];
    if (pass.inputs_only) {
      const int inputs = static_cast<int>(random_.between(1, 3));
      for (int i = 0; i < inputs; ++i) {
        const int n = static_cast<int>(random_.below(context.graph.nodes.size()));
        const GraphNode& node = context.graph.nodes[n];
        const std::size_t n_inputs =
            node.kind == GraphNode::Kind::kRecv ? context.graph.messages[node.message].tensors.size() : 1;
        pass.inputs.push_back({n, static_cast<int>(random_.below(n_inputs))});
      }
    }
    pass.expected.emplace(context.graph, pass.root, pass.roots, pass.inputs_only ? &pass.inputs : nullptr);
    pass.shipped.resize(context.graph.messages.size());
    pass.kept.resize(context.graph.nodes.size());
    if (pass.after < 0) scheduler_.add(random_.between(0, 2 * scenario_.delay), Event::Kind::kBegin, p);
  }
}

void World::run_until_quiet() {
  while (violation_.empty() && !scheduler_.empty()) {
    const Event event = scheduler_.take();
    now_ = std::max(now_, event.time);
    if (++steps_ > kMaxSteps) return violate("the schedule does not end");
    calm_ = steps_ > kCalmAfter;
    dispatch(event);
    fault();
  }
}

void World::dispatch(const Event& event) {
  const int arg = static_cast<int>(event.arg);
  switch (event.kind) {
    case Event::Kind::kRequest:
      return on_request(arg);
    case Event::Kind::kAnswer: {
      const Answer& answer = answers_[arg];
      return complete(answer.call, answer);
    }
    case Event::Kind::kRetry:
      return on_retry(arg);
    case Event::Kind::kServe:
      return serve(arg);
    case Event::Kind::kPerform:
      return perform(pending_actions_[arg]);
    case Event::Kind::kRan:
      return ran(arg);
    case Event::Kind::kBegin:
      return begin_pass(arg);
    case Event::Kind::kRunRoots:
      return run_roots(arg);
    case Event::Kind::kLearn:
      return learn(event.arg);
    case Event::Kind::kStraggle:
      return straggle();
    case Event::Kind::kOpen:
      return open(arg);
    case Event::Kind::kRelease:
      return release_by_user(arg);
    default:
      return;
  }
}

void World::fault() {
  for (const uint32_t at : scenario_.kills) {
    if (at == 0 || steps_ != at) continue;
    const int victim = static_cast<int>(random_.below(workers_.size()));
    int alive = 0;
    for (const WorkerState& worker : workers_) alive += worker.alive ? 1 : 0;
    if (alive > 1 && workers_[victim].alive) kill(victim);
  }
  if (scenario_.release != 0 && steps_ == scenario_.release)
    release_by_user(static_cast<int>(random_.below(scenario_.graphs)));
  if (scenario_.cancel != 0 && steps_ == scenario_.cancel && !passes_.empty()) {
    PassInfo& pass = passes_[random_.below(passes_.size())];
    if (!pass.begun || pass.completed || !workers_[pass.root].alive) return;
    trace(name(pass), " is cancelled");
    cover(*parts_[pass.part], Coverage::kCancelled);
    pass.cancelled = true;
    abort(pass.part, absl::CancelledError("cancelled by the caller"));
  }
}

void World::kill(int victim) {
  trace(worker_name(victim), " dies");
  workers_[victim].alive = false;
  for (int w = 0; w < scenario_.workers; ++w) {
    if (!workers_[w].alive) continue;
    const Time after = random_.between(0, random_.below(2) == 0 ? scenario_.delay : 10 * scenario_.delay);
    scheduler_.add(now_ + after, Event::Kind::kLearn, w | victim << 4);
  }
}

void World::learn(uint32_t arg) {
  const int worker = static_cast<int>(arg & 15), dead = static_cast<int>(arg >> 4 & 15);
  const uint32_t step = arg >> 8;
  if (!workers_[worker].alive) return;
  lose(worker, dead, static_cast<int>(step));
  if (step == 3) return;
  const uint32_t next = arg + (1 << 8);
  if (preempted()) {
    scheduler_.add(now_ + some_delay(), Event::Kind::kLearn, next);
  } else {
    learn(next);
  }
}

Time World::some_delay() {
  if (!calm_ && random_.per_mille(scenario_.long_delays)) return random_.between(50, scenario_.long_delay);
  return random_.between(20, scenario_.delay);
}

}  // namespace gradwire::pass_simulation
