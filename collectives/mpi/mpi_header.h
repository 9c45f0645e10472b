#pragma once

// Includes only MPI's C interface: the old C++ interface would need an additional library.
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>
