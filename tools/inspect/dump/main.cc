#include <cstdio>
#include <string>
#include <vector>

#include "gradwire/tools/inspect/dump/dump_command.h"

// Prints what flight records say: the command `dump` of tools/inspect as a program of its own, which needs no
// library of Gradwire that talks to workers.
int main(int argc, char** argv) {
  std::string out;
  std::string errors;
  const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
  const int status = gradwire::tools::dump_command(arguments, out, errors);
  std::fputs(out.c_str(), stdout);
  std::fputs(errors.c_str(), stderr);
  return status;
}
