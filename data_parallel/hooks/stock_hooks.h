#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "gradwire/collectives/process_group.h"
#include "gradwire/data_parallel/hooks/comm_hook.h"

namespace gradwire::data_parallel {

// The functions make the hooks of torch.distributed.algorithms.ddp_comm_hooks that have no state. All ranks
// of `group` must use them; it is usually the replica's own group. As with the other hooks, nullptr does not
// mean the world: give world(). The functions throw Error with InvalidArgument if `group` or `hook` is
// nullptr.

// Averages the gradients: divides them by the number of ranks and sums them. A replica without a hook rounds
// only once in float16 and bfloat16, so the bits may differ.
std::shared_ptr<CommHook> allreduce_hook(std::shared_ptr<collectives::ProcessGroup> group);

// Exchanges nothing: each rank keeps its own gradients. It measures how much time the communication takes.
std::shared_ptr<CommHook> noop_hook();

// Averages the gradients in float16: casts them, divides them by the number of ranks, sums them, and casts
// the sum back. Values above 65504 become infinite.
std::shared_ptr<CommHook> fp16_compress_hook(std::shared_ptr<collectives::ProcessGroup> group);
// As fp16_compress_hook, in bfloat16: the range of float32 with a precision of 8 bits.
std::shared_ptr<CommHook> bf16_compress_hook(std::shared_ptr<collectives::ProcessGroup> group);

// Casts the bucket to float16, runs `hook`, and casts its result back.
std::shared_ptr<CommHook> fp16_compress_wrapper(std::shared_ptr<CommHook> hook);
// As fp16_compress_wrapper, with bfloat16.
std::shared_ptr<CommHook> bf16_compress_wrapper(std::shared_ptr<CommHook> hook);

// Sends the gradients as 8-bit integers with one scale and one zero point for each rank's bucket, and
// averages them in float32. It gathers the buckets of all ranks, so a rank receives its own number of
// elements in bytes times the number of ranks.
std::shared_ptr<CommHook> quantization_pertensor_hook(std::shared_ptr<collectives::ProcessGroup> group);
// As quantization_pertensor_hook, with a scale and a zero point for each `channel_size` elements. Throws
// Error with InvalidArgument unless channel_size is positive.
std::shared_ptr<CommHook> quantization_perchannel_hook(std::shared_ptr<collectives::ProcessGroup> group,
                                                       int64_t channel_size = 512);

}  // namespace gradwire::data_parallel

// These names had this namespace before.
namespace gradwire::collectives {
using data_parallel::allreduce_hook;
using data_parallel::bf16_compress_hook;
using data_parallel::bf16_compress_wrapper;
using data_parallel::fp16_compress_hook;
using data_parallel::fp16_compress_wrapper;
using data_parallel::noop_hook;
using data_parallel::quantization_perchannel_hook;
using data_parallel::quantization_pertensor_hook;
}  // namespace gradwire::collectives
