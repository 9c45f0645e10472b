#pragma once

// What programs include for a data set that is shared out to the ranks of a group.

#include "collectives/data_parallel/distributed_sampler.h"
