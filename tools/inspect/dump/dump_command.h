#pragma once

#include <string>
#include <vector>

namespace gradwire::tools {

// The command `inspect dump [--lines=N] PATH...`: reads flight records, from files and from directories with
// such files, and prints what they say together. `arguments`: those behind "dump". The texts for the standard
// output and the standard error are added to `out` and `errors`. Returns the exit status: 0, 1 if no file
// could be read, or 2 if the arguments are wrong.
int dump_command(const std::vector<std::string>& arguments, std::string& out, std::string& errors);

}  // namespace gradwire::tools
