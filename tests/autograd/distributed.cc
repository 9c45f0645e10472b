#include "gradwire/tests/autograd/distributed.h"

#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/calls/rref.h"
#include "gradwire/rpc/registry/registration.h"
#include "gradwire/tests/autograd/operations.h"

namespace programs {
namespace {

using at::Tensor;
using gradwire::Error;
using gradwire::Future;
using gradwire::Mutex;
using gradwire::MutexLock;
using gradwire::autograd::BackwardOptions;
using gradwire::autograd::Context;
using gradwire::autograd::Gradients;
using gradwire::rpc::AgentGuard;
using gradwire::rpc::Destination;
using gradwire::rpc::RRef;
using gradwire::rpc::testing::Group;

using Tensors = std::vector<Tensor>;
using Refs = std::vector<RRef<Tensor>>;
using Results = std::pair<Tensors, Refs>;

// A run of a program. Its handlers find it by its number. It lives until the last handler has ended.
struct Session {
  Session(const Program& program_to_run, RunOptions run_options)
      : program(program_to_run), options(run_options), site(program) {}
  const Program program;
  const RunOptions options;
  Site site;
};

Mutex mutex;
std::map<int64_t, std::shared_ptr<Session>> sessions ABSL_GUARDED_BY(mutex);
int64_t next_session ABSL_GUARDED_BY(mutex) = 1;

std::shared_ptr<Session> session_of(int64_t id) {
  MutexLock lock(mutex);
  const auto found = sessions.find(id);
  if (found == sessions.end()) throw std::runtime_error(absl::StrCat("run ", id, " has already ended"));
  return found->second;
}

// The handlers. Each runs one block, as a plain function or as a coroutine. run_block returns all results of
// the block; run_remote returns its only result, which stays with the owner of a reference.
Results run_block(int64_t session, int64_t block, const Tensors& arguments, const Refs& refs);
Future<Results> run_block_async(int64_t session, int64_t block, const Tensors& arguments, const Refs& refs);
Tensor run_remote(int64_t session, int64_t block, const Tensors& arguments, const Refs& refs);
Future<Tensor> run_remote_async(int64_t session, int64_t block, const Tensors& arguments, const Refs& refs);
GRADWIRE_RPC(run_block)
GRADWIRE_RPC(run_block_async)
GRADWIRE_RPC(run_remote)
GRADWIRE_RPC(run_remote_async)

// One execution of a block.
class Frame {
 public:
  Frame(int64_t session, int64_t block, const Tensors& arguments, const Refs& refs)
      : id_(session),
        session_(session_of(session)),
        block_(session_->program.blocks.at(static_cast<std::size_t>(block))),
        values_(arguments),
        refs_(refs) {
    values_.resize(block_.values.size());
    refs_.resize(block_.refs.size());
  }

  const std::vector<Operation>& operations() const { return block_.operations; }

  // Runs an operation that is not a message (is_message).
  void run(const Operation& operation) {
    switch (operation.kind) {
      case Kind::kMakeRef:
        refs_[operation.ref_outputs[0]] = RRef<Tensor>(values_[operation.inputs[0]]);
        break;
      case Kind::kRemote: {
        const Destination to(block_of(operation).agent);
        refs_[operation.ref_outputs[0]] =
            block_of(operation).asynchronous
                ? gradwire::rpc::remote<&run_remote_async>(to, id_, int64_t{operation.block},
                                                           arguments(operation), passed(operation))
                : gradwire::rpc::remote<&run_remote>(to, id_, int64_t{operation.block}, arguments(operation),
                                                     passed(operation));
        break;
      }
      default:
        run_operation(session_->site, block_, operation, values_);
    }
  }

  static bool is_message(const Operation& operation) {
    return operation.kind == Kind::kCall || operation.kind == Kind::kFetch || operation.kind == Kind::kWait;
  }
  // Sends a message. The returned future completes with its results.
  Future<Results> begin(const Operation& operation) {
    if (operation.kind == Kind::kFetch) {
      return refs_[operation.ref_inputs[0]].to_here_async().then(
          [](const Tensor& tensor) { return Results({tensor}, {}); });
    }
    const Destination to(block_of(operation).agent);
    return block_of(operation).asynchronous
               ? gradwire::rpc::rpc_async<&run_block_async>(to, id_, int64_t{operation.block},
                                                            arguments(operation), passed(operation))
               : gradwire::rpc::rpc_async<&run_block>(to, id_, int64_t{operation.block}, arguments(operation),
                                                      passed(operation));
  }
  // Sends a message with a call that waits, and returns the results.
  Results call(const Operation& operation) {
    if (operation.kind == Kind::kFetch) return {{refs_[operation.ref_inputs[0]].to_here()}, {}};
    const Destination to(block_of(operation).agent);
    return block_of(operation).asynchronous
               ? gradwire::rpc::rpc_sync<&run_block_async>(to, id_, int64_t{operation.block},
                                                           arguments(operation), passed(operation))
               : gradwire::rpc::rpc_sync<&run_block>(to, id_, int64_t{operation.block}, arguments(operation),
                                                     passed(operation));
  }
  void keep(const Operation& operation, const Results& results) {
    for (std::size_t i = 0; i < operation.outputs.size(); ++i) {
      values_[operation.outputs[i]] = results.first.at(i);
    }
    for (std::size_t i = 0; i < operation.ref_outputs.size(); ++i) {
      refs_[operation.ref_outputs[i]] = results.second.at(i);
    }
  }

  struct InFlight {
    const Operation* operation;
    Future<Results> results;
  };
  void set_in_flight(const Operation& operation) {
    in_flight_[operation.ticket] = {&operation, begin(operation)};
  }
  InFlight take_in_flight(const Operation& wait) {
    InFlight taken = in_flight_.at(wait.ticket);
    in_flight_.erase(wait.ticket);
    return taken;
  }

  Results results() const {
    Results out;
    for (int result : block_.results) out.first.push_back(values_[result]);
    for (int ref : block_.ref_results) out.second.push_back(refs_[ref]);
    return out;
  }

 private:
  const Block& block_of(const Operation& operation) const {
    return session_->program.blocks[operation.block];
  }
  Tensors arguments(const Operation& operation) const {
    Tensors list;
    for (int input : operation.inputs) list.push_back(input == kNothing ? Tensor() : values_[input]);
    return list;
  }
  Refs passed(const Operation& operation) const {
    Refs list;
    for (int ref : operation.ref_inputs) list.push_back(refs_[ref]);
    return list;
  }

  const int64_t id_;
  const std::shared_ptr<Session> session_;
  const Block& block_;
  Tensors values_;
  Refs refs_;
  std::map<int, InFlight> in_flight_;
};

Results run_block(int64_t session, int64_t block, const Tensors& arguments, const Refs& refs) {
  Frame frame(session, block, arguments, refs);
  for (const Operation& operation : frame.operations()) {
    if (!Frame::is_message(operation)) {
      frame.run(operation);
    } else if (operation.kind == Kind::kWait) {
      const Frame::InFlight in_flight = frame.take_in_flight(operation);
      frame.keep(*in_flight.operation, in_flight.results.wait());
    } else if (operation.ticket >= 0) {
      frame.set_in_flight(operation);
    } else {
      frame.keep(operation, frame.call(operation));
    }
  }
  return frame.results();
}

Future<Results> run_block_async(int64_t session, int64_t block, const Tensors& arguments, const Refs& refs) {
  Frame frame(session, block, arguments, refs);
  for (const Operation& operation : frame.operations()) {
    if (!Frame::is_message(operation)) {
      frame.run(operation);
    } else if (operation.kind == Kind::kWait) {
      const Frame::InFlight in_flight = frame.take_in_flight(operation);
      const Results results = co_await in_flight.results;
      frame.keep(*in_flight.operation, results);
    } else if (operation.ticket >= 0) {
      frame.set_in_flight(operation);
    } else {
      const Future<Results> future = frame.begin(operation);
      const Results results = co_await future;
      frame.keep(operation, results);
    }
  }
  co_return frame.results();
}

Tensor run_remote(int64_t session, int64_t block, const Tensors& arguments, const Refs& refs) {
  return run_block(session, block, arguments, refs).first.at(0);
}

Future<Tensor> run_remote_async(int64_t session, int64_t block, const Tensors& arguments, const Refs& refs) {
  return run_block_async(session, block, arguments, refs).then([](const Results& results) {
    return results.first.at(0);
  });
}

// Runs backward pass number `which` on this worker. `results`: the values of its roots.
void run_pass(int64_t session, int64_t context, int64_t which, const Tensors& results) {
  const std::shared_ptr<Session> run = session_of(session);
  const Pass& pass = run->program.passes.at(static_cast<std::size_t>(which));
  Tensors roots;
  for (std::size_t i = 0; i < pass.roots.size(); ++i) roots.push_back(results.at(i));
  BackwardOptions options;
  options.retain_graph = pass.retain_graph;
  options.mode = run->options.mode;
  options.grad_roots = root_gradients(run->site, pass, roots);
  for (int leaf : pass.inputs) options.inputs.push_back(run->site.leaves.at(leaf));
  options.timeout = absl::Seconds(60);
  gradwire::autograd::backward(context, roots, options);
}
GRADWIRE_RPC(run_pass)

// Reads the gradients of worker `rank` into `outcome`.
void read_gradients(const Group& group, int rank, const Session& session, int64_t context, Outcome& outcome) {
  AgentGuard guard(group[rank]);
  std::optional<Gradients> gradients;
  try {
    gradients = gradwire::autograd::get_gradients(context);
  } catch (const Error& error) {
    // NotFound means that no message of the program reached this worker.
    if (error.status().code() != absl::StatusCode::kNotFound) throw;
    return;
  }
  std::size_t known = 0;
  for (std::size_t i = 0; i < session.program.leaves.size(); ++i) {
    if (session.program.leaves[i].agent != rank) continue;
    const Tensor* gradient = gradients->find(session.site.leaves[i]);
    if (gradient == nullptr) continue;
    ++known;
    outcome.gradients[i] = *gradient;
  }
  if (known != gradients->size()) {
    throw std::runtime_error(absl::StrCat("unexpected gradients on worker", rank, ": got ", gradients->size(),
                                          " gradients, but only ", known, " of them belong to its leaves"));
  }
}

bool knows(const Group& group, int rank, int64_t context) {
  AgentGuard guard(group[rank]);
  try {
    gradwire::autograd::get_gradients(context);
    return true;
  } catch (const Error& error) {
    if (error.status().code() != absl::StatusCode::kNotFound) throw;
    return false;
  }
}

// Runs the program and its backward passes in a new context, and reads the gradients. Returns the id of the
// context, which is released at the end.
int64_t run_in_context(const Group& group, int64_t id, const Session& session, Outcome& outcome) {
  const Program& program = session.program;
  const int home = program.blocks[0].agent;
  AgentGuard guard(group[home]);
  Context context;
  // The main program runs on this thread, not in a handler.
  const Tensors results = run_block(id, 0, {}, {}).first;
  for (std::size_t pass = 0; pass < program.passes.size(); ++pass) {
    Tensors roots;
    for (const Root& root : program.passes[pass].roots) roots.push_back(results.at(root.result));
    if (program.backward_agent == home) {
      run_pass(id, context.id(), static_cast<int64_t>(pass), roots);
    } else {
      gradwire::rpc::rpc_sync<&run_pass>(Destination(program.backward_agent), id, context.id(),
                                         static_cast<int64_t>(pass), roots);
    }
  }
  for (int rank = 0; rank < program.agents; ++rank) {
    read_gradients(group, rank, session, context.id(), outcome);
  }
  return context.id();
}

}  // namespace

Outcome run_distributed(const Group& group, const Program& program, const RunOptions& options) {
  const auto session = std::make_shared<Session>(program, options);
  int64_t id;
  {
    MutexLock lock(mutex);
    id = next_session++;
    sessions[id] = session;
  }
  Outcome outcome;
  outcome.gradients.resize(program.leaves.size());
  try {
    const int64_t context = run_in_context(group, id, *session, outcome);
    for (const Tensor& leaf : session->site.leaves) {
      if (leaf.grad().defined()) throw std::runtime_error("the backward pass has set .grad of a leaf");
    }
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    for (int rank = 0; rank < program.agents; ++rank) {
      // The messages that release the context may still be in flight. No event says that they have arrived,
      // so poll.
      while (knows(group, rank, context)) {
        if (absl::Now() > deadline) {
          throw std::runtime_error(
              absl::StrCat("worker", rank, " still has the context 60 s after the program released it"));
        }
        std::this_thread::yield();
      }
    }
    for (const HookCalls& calls : *session->site.hooks) {
      outcome.hook_calls.emplace_back(calls.defined, calls.undefined);
    }
  } catch (const Error& error) {
    outcome.error = absl::StrCat(error.what(), " (worker \"", error.worker(), "\")");
  } catch (const std::exception& error) {
    outcome.error = error.what();
  }
  MutexLock lock(mutex);
  sessions.erase(id);
  return outcome;
}

}  // namespace programs
