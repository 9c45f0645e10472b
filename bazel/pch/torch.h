#pragma once

// Headers of tensors, modules and autograd that most files with libtorch include besides those of standard.h.
// Those of torch/nn/modules and of most optimizers are not here: their templates would cost each file half a
// second.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/input_buffer.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>
#include <torch/types.h>

// These are virtual functions of templates. If nothing in this header names them, clang instantiates them in
// each file that uses the precompiled header, which takes a third of a second.
namespace gradwire::precompiled_internal {

inline void name_virtual_functions(const c10::ListType& list, const c10::FutureType& future,
                                   const c10::AwaitType& await, const c10::RRefType& rref,
                                   const torch::jit::ComplexValsAttr& complexes,
                                   const torch::jit::TypesAttr& types) {
  (void)(list.equals(list) || future.equals(future) || await.equals(await) || rref.equals(rref));
  (void)complexes.clone();
  (void)types.clone();
}

}  // namespace gradwire::precompiled_internal
