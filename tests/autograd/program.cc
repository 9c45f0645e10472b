#include "gradwire/tests/autograd/program.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace programs {
namespace {

std::string to_text(const Type& type) {
  if (type.undefined) return "undefined";
  const char* dtype = type.dtype == Dtype::kFloat64   ? "float64"
                      : type.dtype == Dtype::kFloat32 ? "float32"
                                                      : "int64";
  return absl::StrCat(dtype, "[", absl::StrJoin(type.shape, ","), "]", type.requires_grad ? "*" : "");
}

std::string list(const std::vector<int>& ids, const char* prefix) {
  return absl::StrJoin(ids, " ", [prefix](std::string* out, int id) {
    absl::StrAppend(out, id == kNothing ? "nothing" : absl::StrCat(prefix, id));
  });
}

std::string both(const std::vector<int>& values, const std::vector<int>& refs) {
  return absl::StrCat(list(values, "v"), values.empty() || refs.empty() ? "" : " ", list(refs, "r"));
}

std::string to_text(const Program& program, const Block& block, const Operation& operation) {
  std::string out;
  if (!operation.outputs.empty() || !operation.ref_outputs.empty()) {
    absl::StrAppend(&out, both(operation.outputs, operation.ref_outputs), " = ");
  }
  absl::StrAppend(&out, name(operation.kind));
  if (operation.block >= 0) {
    const Block& callee = program.blocks[operation.block];
    absl::StrAppend(&out, " block ", operation.block, " on worker", callee.agent);
  }
  if (!operation.numbers.empty()) absl::StrAppend(&out, " ", absl::StrJoin(operation.numbers, ","));
  const std::string inputs = both(operation.inputs, operation.ref_inputs);
  if (!inputs.empty()) absl::StrAppend(&out, " (", inputs, ")");
  if (operation.ticket >= 0) {
    absl::StrAppend(&out, operation.kind == Kind::kWait ? " for t" : " under t", operation.ticket);
  }
  if (!operation.outputs.empty()) {
    absl::StrAppend(&out, "    # ",
                    absl::StrJoin(operation.outputs, " ", [&block](std::string* text, int id) {
                      absl::StrAppend(text, to_text(block.values[id]));
                    }));
  }
  return out;
}

}  // namespace

int64_t elements(const Type& type) {
  int64_t product = 1;
  for (int64_t size : type.shape) product *= size;
  return product;
}

const char* name(Kind kind) {
  switch (kind) {
    case Kind::kLeaf:
      return "leaf";
    case Kind::kConstant:
      return "constant";
    case Kind::kAdd:
      return "add";
    case Kind::kSub:
      return "sub";
    case Kind::kMul:
      return "mul";
    case Kind::kScale:
      return "scale";
    case Kind::kNeg:
      return "neg";
    case Kind::kRelu:
      return "relu";
    case Kind::kSquare:
      return "square";
    case Kind::kSin:
      return "sin";
    case Kind::kTanh:
      return "tanh";
    case Kind::kMatmul:
      return "matmul";
    case Kind::kSum:
      return "sum";
    case Kind::kSumDim:
      return "sum_dim";
    case Kind::kCast:
      return "cast";
    case Kind::kTranspose:
      return "transpose";
    case Kind::kSelect:
      return "select";
    case Kind::kNarrow:
      return "narrow";
    case Kind::kUnsqueeze:
      return "unsqueeze";
    case Kind::kExpand:
      return "expand";
    case Kind::kUnbind:
      return "unbind";
    case Kind::kSplit:
      return "split";
    case Kind::kReshape:
      return "flatten";
    case Kind::kDetach:
      return "detach";
    case Kind::kCat:
      return "cat";
    case Kind::kStack:
      return "stack";
    case Kind::kIndexSelect:
      return "index_select";
    case Kind::kEmbedding:
      return "embedding";
    case Kind::kDropGradient:
      return "drop_gradient";
    case Kind::kHook:
      return "hook";
    case Kind::kAddInPlace:
      return "add_";
    case Kind::kScaleInPlace:
      return "scale_";
    case Kind::kMulInPlace:
      return "mul_";
    case Kind::kCopyInPlace:
      return "copy_";
    case Kind::kMakeRef:
      return "make_ref";
    case Kind::kFetch:
      return "to_here";
    case Kind::kCall:
      return "call";
    case Kind::kRemote:
      return "remote";
    case Kind::kWait:
      return "wait";
  }
  return "?";
}

const char* name(Family family) {
  switch (family) {
    case Family::kExact:
      return "exact";
    case Family::kReal:
      return "real";
    case Family::kRealPlain:
      return "real_plain";
  }
  return "?";
}

std::vector<int> blocks_called(const Program& program) {
  std::vector<bool> called(program.blocks.size());
  called[0] = true;
  std::vector<int> order = {0};
  for (std::size_t i = 0; i < order.size(); ++i) {
    for (const Operation& operation : program.blocks[order[i]].operations) {
      if (operation.block < 0 || called[operation.block]) continue;
      called[operation.block] = true;
      order.push_back(operation.block);
    }
  }
  std::sort(order.begin(), order.end());
  return order;
}

std::string to_text(const Program& program) {
  std::string out = absl::StrCat("seed ", program.seed, ", family ", name(program.family), ", ",
                                 program.agents, " workers; * requires grad\n");
  for (std::size_t i = 0; i < program.leaves.size(); ++i) {
    const Leaf& leaf = program.leaves[i];
    absl::StrAppend(&out, "leaf ", i, " on worker", leaf.agent, ": ", to_text(leaf.type),
                    leaf.hook ? ", its gradient doubled by a hook" : "", "\n");
  }
  for (int i : blocks_called(program)) {
    const Block& block = program.blocks[i];
    absl::StrAppend(&out, "block ", i, " on worker", block.agent, block.asynchronous ? ", a coroutine" : "");
    if (block.parameters + block.ref_parameters > 0) {
      absl::StrAppend(&out, ", takes");
      for (int p = 0; p < block.parameters; ++p) {
        absl::StrAppend(&out, " v", p, " ", to_text(block.values[p]));
      }
      for (int p = 0; p < block.ref_parameters; ++p) {
        absl::StrAppend(&out, " r", p, " ", to_text(block.refs[p].type), " of worker", block.refs[p].owner);
      }
    }
    absl::StrAppend(&out, ":\n");
    for (const Operation& operation : block.operations) {
      absl::StrAppend(&out, "  ", to_text(program, block, operation), "\n");
    }
    absl::StrAppend(&out, "  return ", both(block.results, block.ref_results), "\n");
  }
  for (const Pass& pass : program.passes) {
    absl::StrAppend(&out, "backward on worker", program.backward_agent, " of");
    for (const Root& root : pass.roots) {
      absl::StrAppend(&out, " v", program.blocks[0].results[root.result],
                      root.seed == 0 ? "" : " (with a grad_root)");
    }
    if (pass.retain_graph) absl::StrAppend(&out, ", retain_graph");
    if (pass.create_graph) absl::StrAppend(&out, ", create_graph");
    if (!pass.inputs.empty()) absl::StrAppend(&out, ", inputs: leaves ", absl::StrJoin(pass.inputs, ","));
    absl::StrAppend(&out, "\n");
  }
  return out;
}

}  // namespace programs
