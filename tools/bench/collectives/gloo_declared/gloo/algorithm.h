#pragma once

// The wheel has Gloo in libtorch_cpu.so, but not its headers, which those of libtorch's ProcessGroupGloo
// include. The files in this folder declare what ProcessGroupGloo.hpp of libtorch 2.11 names, and nothing
// else: the bench holds pointers to these classes and calls none of their functions.
