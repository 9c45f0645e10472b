#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace programs {

// A small distributed program that ends in backward passes, as data: it can be printed, run by several
// workers, run in one process, and made smaller. Without libtorch.

enum class Dtype { kFloat64, kFloat32, kInt64 };

struct Type {
  Dtype dtype = Dtype::kFloat64;
  std::vector<int64_t> shape;
  bool requires_grad = false;
  // The undefined tensor.
  bool undefined = false;
};

int64_t elements(const Type& type);

enum class Kind {
  // Makes values of what there is on the worker. kLeaf: numbers: which.
  kLeaf,
  kConstant,
  // Elementwise, with broadcasting. kScale: by numbers[0], in the real family by a sixteenth of it.
  kAdd,
  kSub,
  kMul,
  kScale,
  kNeg,
  kRelu,
  kSquare,
  kSin,
  kTanh,
  kMatmul,
  kSum,
  // numbers: the dimension.
  kSumDim,
  // To numbers[0], a Dtype.
  kCast,
  // Views. numbers: dimensions, then where and how long.
  kTranspose,
  kSelect,
  kNarrow,
  kUnsqueeze,
  kExpand,
  kUnbind,
  kSplit,
  kReshape,
  kDetach,
  // numbers: the dimension, for kIndexSelect then the indices.
  kCat,
  kStack,
  kIndexSelect,
  // numbers: whether its gradient is sparse, then the rows.
  kEmbedding,
  // The sum of its two inputs; the gradient of the first one is undefined.
  kDropGradient,
  // Doubles the gradient of its input. numbers: the hook.
  kHook,
  // Change their first input.
  kAddInPlace,
  kScaleInPlace,
  kMulInPlace,
  kCopyInPlace,
  // References: to a value of this worker; and from one back to a value.
  kMakeRef,
  kFetch,
  // Messages: run `block` on its worker. kRemote: its only result stays there, behind a reference.
  kCall,
  kRemote,
  // For what was begun under `ticket`.
  kWait,
};

const char* name(Kind kind);

struct Operation {
  Kind kind = Kind::kConstant;
  // Values of the block. kNothing, only as an argument of a call: the undefined tensor.
  std::vector<int> inputs;
  std::vector<int> outputs;
  std::vector<int64_t> numbers;
  // References of the block.
  std::vector<int> ref_inputs;
  std::vector<int> ref_outputs;
  int block = -1;
  // kCall, kFetch: asynchronous if not negative; what has no kWait is never waited for.
  int ticket = -1;
};
inline constexpr int kNothing = -1;

struct Reference {
  int owner = 0;
  Type type;
};

// The body of a handler; block 0 is the main program.
struct Block {
  int agent = 0;
  // A coroutine that returns a Future; else a plain function.
  bool asynchronous = false;
  // Of all values; the first `parameters` ones are what the message brought.
  std::vector<Type> values;
  std::vector<Reference> refs;
  int parameters = 0;
  int ref_parameters = 0;
  std::vector<Operation> operations;
  std::vector<int> results;
  std::vector<int> ref_results;
};

struct Leaf {
  int agent = 0;
  Type type;
  // Its gradient is doubled by a hook.
  bool hook = false;
  uint64_t seed = 0;
};

struct Root {
  // Which of block 0's results.
  int result = 0;
  // Of the data of its grad_root. 0: none is given; for one element only.
  uint64_t seed = 0;
};

struct Pass {
  std::vector<Root> roots;
  bool retain_graph = false;
  // Leaves: only these get gradients. Empty: all.
  std::vector<int> inputs;
  // For later: what the engine does not offer yet.
  bool create_graph = false;
};

enum class Family {
  // Small integers in float64 (and float32): every order of additions gives the same.
  kExact,
  // Real numbers in float32.
  kReal,
  // The same, with nothing whose bits depend on how a tensor lies in memory.
  kRealPlain,
};

const char* name(Family family);

struct Program {
  uint64_t seed = 0;
  Family family = Family::kExact;
  int agents = 2;
  // Where backward() is called; the main program is on blocks[0].agent.
  int backward_agent = 0;
  int hooks = 0;
  std::vector<Leaf> leaves;
  std::vector<Block> blocks;
  std::vector<Pass> passes;
};

// Those that the main program comes to, in ascending order.
std::vector<int> blocks_called(const Program& program);

std::string to_text(const Program& program);

}  // namespace programs
