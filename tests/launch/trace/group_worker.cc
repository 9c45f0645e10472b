// A worker with a process group and without an agent: three barriers. Then it destroys the group ("destroy"),
// or ends without that ("leave"). It knows nothing of traces.

#include <string>

#include "gradwire/collectives/world.h"

int main(int argc, char** argv) {
  const auto world = gradwire::collectives::init_process_group();
  for (int i = 0; i < 3; ++i) world->barrier();
  if (argc > 1 && std::string(argv[1]) == "destroy") gradwire::collectives::destroy_process_group();
}
