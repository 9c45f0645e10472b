#pragma once

// MPI's C interface alone: its old C++ one would have to be linked.
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>
