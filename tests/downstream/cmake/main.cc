// Two processes run this program. Each calls functions of the other one: of a library that the program links,
// of one that it loads, and of the program itself. The argument is the path of the library to load.
#include <ATen/ops/ones.h>
#include <dlfcn.h>

#include <iostream>
#include <stdexcept>
#include <string>

#include "functions.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/tools/launch_info.h"

namespace {

void check(bool good, const std::string& what) {
  if (!good) throw std::runtime_error("failed: " + what);
}

}  // namespace

namespace downstream {

std::string greet(const std::string& name) { return "hello " + name; }
GRADWIRE_RPC(greet)

// Throws if the program and the library do not share what must exist once in a process.
void check_shared() {
  check(place_of_registry() == &gradwire::rpc::Registry::instance(), "one registry");
  check(place_of_root() == &gradwire::rpc::callee_of_function<&root>, "one entry for each function");
}

void run(const std::string& plugin) {
  void* const library = dlopen(plugin.c_str(), RTLD_NOW);
  check(library != nullptr, "dlopen");
  using RemoteTriple = int64_t (*)(const char*, int64_t);
  const auto remote_triple = reinterpret_cast<RemoteTriple>(dlsym(library, "remote_triple"));
  check(remote_triple != nullptr, "dlsym");

  const int rank = gradwire::LaunchInfo::from_env().rank;
  gradwire::rpc::init_rpc("worker" + std::to_string(rank));
  const std::string peer = "worker" + std::to_string(1 - rank);
  const at::Tensor y = gradwire::rpc::rpc_sync<&scale>(peer, at::ones({3}), 2.0);
  check(y.sum().item<double>() == 6, "scale");
  check(gradwire::rpc::rpc_sync<&root>(peer, int64_t{49}) == 7, "root, called by the program");
  check(remote_root(peer, 64) == 8, "root, called by the library");
  check(gradwire::rpc::rpc_sync<&greet>(peer, std::string("you")) == "hello you", "greet");
  check(remote_triple(peer.c_str(), 5) == 15, "triple, of a library that was loaded");
  try {
    remote_root(peer, -1);
    check(false, "an error");
  } catch (const gradwire::Error& error) {
    check(error.worker() == peer, "the name of the worker in an error");
  }
  gradwire::rpc::shutdown();
  std::cout << "worker" << rank << " is done" << std::endl;
}

}  // namespace downstream

int main(int argc, char** argv) try {
  check(argc == 2, "one argument");
  downstream::check_shared();
  downstream::run(argv[1]);
} catch (const std::exception& error) {
  std::cerr << error.what() << std::endl;
  return 1;
}
