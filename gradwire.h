#pragma once

// All public headers, for programs that do not choose among them. docs/README.md says what each part costs to
// compile. The target is //:gradwire.

#include "gradwire/autograd/autograd.h"
#include "gradwire/autograd/checkpoint.h"
#include "gradwire/autograd/clip_grad.h"
#include "gradwire/autograd/distributed_optimizer.h"
#include "gradwire/autograd/statistics.h"
#include "gradwire/base/version.h"
#include "gradwire/collectives/collectives.h"
#include "gradwire/data_parallel/distributed_data_parallel.h"
#include "gradwire/data_parallel/distributed_sampler.h"
#include "gradwire/rpc/mesh.h"
#include "gradwire/rpc/remote_module.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/rpc/stock_modules.h"
#include "gradwire/rpc/stream.h"
#include "gradwire/store/file_store.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/store/init_method.h"
#include "gradwire/store/prefix_store.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/tools/launch_info.h"
