#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "gradwire/autograd/pass/context.h"
#include "gradwire/rpc/calls/rref.h"

namespace gradwire::autograd {

// Both functions change the gradients that a context holds for these parameters, on all of their owners. They
// throw Error: NotFound (the context is unknown or released), Unavailable, DeadlineExceeded, InvalidArgument.
// A gradient that was returned before (get_gradients) does not change.

// Scales the gradients so that their norm, all taken as one vector, is at most `max_norm`. Replaces
// torch::nn::utils::clip_grad_norm_ and gives the same results bit for bit. Returns the norm before the
// scaling, 0 without gradients. A norm that is not finite makes the gradients not finite; with
// `error_if_nonfinite` it throws InvalidArgument and changes nothing. Takes one round of calls if one worker
// owns all parameters or if nothing has to be clipped, otherwise two.
double clip_grad_norm_(const ContextRef& context, const std::vector<rpc::RRef<at::Tensor>>& parameters,
                       double max_norm, double norm_type = 2.0, bool error_if_nonfinite = false);

// Clamps each element of the gradients to [-clip_value, clip_value], as torch::nn::utils::clip_grad_value_.
// Takes one round of calls.
void clip_grad_value_(const ContextRef& context, const std::vector<rpc::RRef<at::Tensor>>& parameters,
                      double clip_value);

}  // namespace gradwire::autograd
