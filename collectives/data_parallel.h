#pragma once

// What programs include for a module that is replicated on all ranks of a group.

#include "collectives/data_parallel/distributed_data_parallel.h"
