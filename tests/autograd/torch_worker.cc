// A worker of the RPC of libtorch. A group of these processes runs the random programs of a range of seeds,
// and compares the gradients of the distributed engine of libtorch with those of its local engine:
//   torch_worker RANK SIZE PORT FIRST COUNT
//
// Member 0 runs the programs. It hosts the store and prints its port first. Then it prints the differences,
// and exits with 0 if there are none. The other members serve until their standard input ends.
//
// The distributed engine of libtorch has limits, so these programs are simpler than the others in this
// folder. Handlers must be operators of the namespace aten, because without Python libtorch serves no other
// functions. A backward never ends if a result is not used. A backward starts from scalars only.

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/autograd/engine/dist_engine.h>
#include <torch/csrc/distributed/autograd/utils.h>
#include <torch/csrc/distributed/rpc/request_callback_no_python.h>
#include <torch/csrc/distributed/rpc/script_call.h>
#include <torch/csrc/distributed/rpc/tensorpipe_agent.h>
#include <torch/csrc/distributed/rpc/utils.h>
#include <torch/csrc/jit/frontend/script_type_parser.h>
#include <torch/csrc/jit/runtime/operator.h>
#include <torch/library.h>
#include <unistd.h>

#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/tests/autograd/check.h"
#include "gradwire/tests/autograd/operations.h"

namespace programs {
namespace {

namespace trpc = torch::distributed::rpc;
namespace tautograd = torch::distributed::autograd;
using at::Tensor;
using Tensors = std::vector<Tensor>;

const GeneratorOptions kOptions = {.for_libtorch = true};

// The program of a seed on this worker.
struct Session {
  explicit Session(uint64_t seed) : program(make_program(seed, kOptions)), site(program) {}
  const Program program;
  Site site;
};

std::mutex mutex;
std::map<int64_t, std::shared_ptr<Session>> sessions;
std::shared_ptr<trpc::TensorPipeAgent> agent;
std::vector<trpc::WorkerInfo> workers;

std::shared_ptr<Session> session_of(int64_t seed) {
  std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<Session>& session = sessions[seed];
  if (session == nullptr) session = std::make_shared<Session>(static_cast<uint64_t>(seed));
  return session;
}

using Call = c10::intrusive_ptr<c10::ivalue::Future>;

// Calls the operator aten::gradwire_NAME on a worker, in the current context if there is one.
Call call(int to, const std::string& name, std::vector<c10::IValue> arguments) {
  const auto operators =
      torch::jit::getAllOperatorsFor(c10::Symbol::fromQualString("aten::gradwire_" + name));
  auto message = trpc::ScriptCall(operators.at(0), std::move(arguments)).toMessage();
  // Send the context also if no tensor requires grad, because the handler uses leaves.
  return tautograd::sendMessageWithAutograd(*agent, workers.at(static_cast<std::size_t>(to)),
                                            std::move(message), /*forceGradRecording=*/true);
}

// Copies received tensors, because a tensor that is sent twice in a message arrives as one tensor.
Tensors owned(Tensors tensors) {
  for (Tensor& tensor : tensors) tensor = tensor.clone();
  return tensors;
}

Tensors wait(const Call& call) {
  call->waitAndThrow();
  return trpc::deserializeRespToIValue(*call->constValue().toCustomClass<trpc::Message>()).toTensorVector();
}

Tensors run_block(int64_t seed, int64_t index, const Tensors& arguments) {
  const std::shared_ptr<Session> session = session_of(seed);
  const Block& block = session->program.blocks.at(static_cast<std::size_t>(index));
  Tensors values = owned(arguments);
  values.resize(block.values.size());
  std::map<int, std::pair<const Operation*, Call>> in_flight;
  const auto keep = [&](const Operation& operation, const Call& call) {
    const Tensors results = owned(wait(call));
    for (std::size_t i = 0; i < operation.outputs.size(); ++i) {
      values[operation.outputs[i]] = results.at(i);
    }
  };
  for (const Operation& operation : block.operations) {
    if (operation.kind == Kind::kCall) {
      Tensors sent;
      // libtorch may read the memory of an argument later. Copy the arguments of an asynchronous call,
      // because the next operations may change them in place.
      for (int input : operation.inputs) {
        sent.push_back(operation.ticket >= 0 ? values[input].clone() : values[input]);
      }
      const Call begun = call(session->program.blocks[operation.block].agent, "run_block",
                              {seed, int64_t{operation.block}, sent});
      if (operation.ticket >= 0) {
        in_flight[operation.ticket] = {&operation, begun};
      } else {
        keep(operation, begun);
      }
    } else if (operation.kind == Kind::kWait) {
      const auto [operation_begun, begun] = in_flight.at(operation.ticket);
      keep(*operation_begun, begun);
    } else {
      run_operation(session->site, block, operation, values);
    }
  }
  Tensors results;
  for (int result : block.results) results.push_back(values[result]);
  return results;
}

// Returns the gradients of this worker's leaves in a context. The first tensor has the indices of the leaves.
Tensors read_gradients(int64_t seed, int64_t context) {
  const std::shared_ptr<Session> session = session_of(seed);
  tautograd::DistAutogradContainer& container = tautograd::DistAutogradContainer::getInstance();
  std::vector<int64_t> which;
  Tensors gradients;
  try {
    const auto all = container.retrieveContext(context)->getGradients();
    for (std::size_t i = 0; i < session->site.leaves.size(); ++i) {
      const auto found = all.find(session->site.leaves[i]);
      if (found == all.end()) continue;
      which.push_back(static_cast<int64_t>(i));
      gradients.push_back(found->value());
    }
  } catch (const c10::Error&) {
    // No message of the program reached this worker.
  }
  std::lock_guard<std::mutex> lock(mutex);
  sessions.erase(seed);
  gradients.insert(gradients.begin(), at::tensor(which, at::TensorOptions().dtype(at::kLong)));
  return gradients;
}

// Runs a program, and returns the gradients of all workers.
Outcome run_over_workers(const Program& program) {
  Outcome outcome;
  outcome.gradients.resize(program.leaves.size());
  tautograd::DistAutogradContainer& container = tautograd::DistAutogradContainer::getInstance();
  const auto seed = static_cast<int64_t>(program.seed);
  const auto context = container.newContext();
  const int64_t id = context->contextId();
  try {
    const std::shared_ptr<Session> session = session_of(seed);
    const Tensors results = run_block(seed, 0, {});
    for (const Pass& pass : program.passes) {
      Tensors values, roots;
      for (const Root& root : pass.roots) values.push_back(results.at(root.result));
      const Tensors gradients = root_gradients(session->site, pass, values);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const bool given = !gradients.empty() && gradients[i].defined();
        roots.push_back((given ? values[i] * gradients[i] : values[i]).sum());
      }
      tautograd::DistEngine::getInstance().execute(id, roots, pass.retain_graph);
    }
    tautograd::DistAutogradContainer::forceCurrentContextId(-1);
    for (int worker = 0; worker < program.agents; ++worker) {
      const Tensors got =
          worker == 0 ? read_gradients(seed, id) : wait(call(worker, "read_gradients", {seed, id}));
      for (std::size_t i = 1; i < got.size(); ++i) {
        outcome.gradients.at(
            static_cast<std::size_t>(got[0].select(0, static_cast<int64_t>(i) - 1).item<int64_t>())) = got[i];
      }
    }
  } catch (const std::exception& error) {
    outcome.error = absl::StrCat("over workers: ", error.what());
    tautograd::DistAutogradContainer::forceCurrentContextId(-1);
  }
  container.releaseContext(id);
  return outcome;
}

void join(int rank, int size, int port) {
  c10d::TCPStoreOptions store_options;
  store_options.port = static_cast<std::uint16_t>(port);
  store_options.isServer = rank == 0;
  store_options.waitWorkers = false;
  const auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", store_options);
  if (rank == 0) std::cout << store->getPort() << std::endl;
  trpc::TensorPipeRpcBackendOptions options(16, std::nullopt, std::nullopt, /*rpc_timeout=*/60, "env://");
  agent = std::make_shared<trpc::TensorPipeAgent>(
      c10::make_intrusive<c10d::PrefixStore>("rpc", store), absl::StrCat("w", rank),
      static_cast<trpc::worker_id_t>(rank), size, options, std::unordered_map<std::string, trpc::DeviceMap>(),
      std::vector<c10::Device>(), std::make_unique<trpc::RequestCallbackNoPython>());
  // Without the type resolver, the container and the current agent, the first call ends the process.
  agent->setTypeResolver(std::make_shared<trpc::TypeResolver>([](const c10::QualifiedName& name) {
    torch::jit::ScriptTypeParser parser;
    return c10::StrongTypePtr(nullptr, parser.parseType(name.qualifiedName()));
  }));
  tautograd::DistAutogradContainer::init(static_cast<int64_t>(rank));
  trpc::RpcAgent::setCurrentRpcAgent(agent);
  agent->start();
  for (int i = 0; i < size; ++i) workers.push_back(agent->getWorkerInfo(absl::StrCat("w", i)));
}

// Runs the programs and prints the differences. Returns whether there are none, and enough programs and calls
// ran.
bool run_programs(uint64_t first, uint64_t count) {
  uint64_t run = 0, calls = 0;
  int wrong = 0;
  for (uint64_t seed = first; seed < first + count && wrong < 3; ++seed) {
    const Program program = make_program(seed, kOptions);
    Traits traits;
    const Outcome expected = run_in_one_process(program, &traits);
    // The distributed engine assumes that every sent tensor is used. For an unused one it computes a gradient
    // of zeros, which differs from the local engine. So skip such programs.
    if (!traits.tensors_used) continue;
    ++run;
    calls += blocks_called(program).size() - 1;
    const std::string found =
        difference(program, expected, run_over_workers(program), /*bits=*/false, Hooks::kNone);
    if (found.empty()) continue;
    ++wrong;
    std::cout << found << "\n" << to_text(program) << std::endl;
  }
  std::cout << run << " programs of " << count << " with " << calls << " calls" << std::endl;
  return wrong == 0 && run >= count / 2 && calls >= 2 * run;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(aten, library) {
  library.def("gradwire_run_block(int seed, int block, Tensor[] arguments) -> Tensor[]", &run_block);
  library.def("gradwire_read_gradients(int seed, int context) -> Tensor[]", &read_gradients);
}

}  // namespace programs

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  const int rank = std::stoi(argv[1]);
  bool good = true;
  try {
    programs::join(rank, std::stoi(argv[2]), std::stoi(argv[3]));
    if (rank == 0) {
      good = programs::run_programs(std::stoull(argv[4]), std::stoull(argv[5]));
    } else {
      char nothing;
      while (::read(STDIN_FILENO, &nothing, 1) > 0) {
      }
    }
  } catch (const std::exception& error) {
    std::cout << "member " << rank << ": " << error.what() << std::endl;
    good = false;
  }
  // Exit without destructors, because the threads of the agent cannot be ended.
  ::_exit(good ? 0 : 1);
}
