#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "gradwire/autograd/context.h"
#include "gradwire/rpc/rref.h"

namespace gradwire::autograd {

// Both change the gradients that a context holds of these parameters, on whatever workers they are, and throw
// Error: NotFound (the context is unknown or released), Unavailable, DeadlineExceeded, InvalidArgument. A
// gradient that somebody has got before (get_gradients) stays as it is.

// Scales the gradients so that their norm, all taken as one vector, is at most `max_norm`, in place of
// torch::nn::utils::clip_grad_norm_ and with its results, bit for bit: returns the norm they had, 0 without
// gradients. A norm that is not finite makes the gradients not finite; with `error_if_nonfinite` it is an
// InvalidArgument and changes nothing. One round of calls where one worker owns all parameters or nothing is
// to be clipped, else two.
double clip_grad_norm_(const ContextRef& context, const std::vector<rpc::RRef<at::Tensor>>& parameters,
                       double max_norm, double norm_type = 2.0, bool error_if_nonfinite = false);

// Cuts each element of the gradients to [-clip_value, clip_value], as torch::nn::utils::clip_grad_value_. One
// round of calls.
void clip_grad_value_(const ContextRef& context, const std::vector<rpc::RRef<at::Tensor>>& parameters,
                      double clip_value);

}  // namespace gradwire::autograd
