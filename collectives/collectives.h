#pragma once

// What programs include. Each function acts on the world of init_process_group() unless a group is given, and
// is described at the method of ProcessGroup of the same name.

#include "gradwire/collectives/backend.h"
#include "gradwire/collectives/functions.h"
#include "gradwire/collectives/objects.h"
#include "gradwire/collectives/process_group.h"
#include "gradwire/collectives/reduce_op.h"
#include "gradwire/collectives/work.h"
#include "gradwire/collectives/world.h"
