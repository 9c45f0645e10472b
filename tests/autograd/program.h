#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace programs {

// A small distributed program that ends with backward passes, represented as data. It can be printed, run by
// several workers, run in one process, and made smaller. Does not depend on libtorch.

enum class Dtype { kFloat64, kFloat32, kInt64 };

struct Type {
  Dtype dtype = Dtype::kFloat64;
  std::vector<int64_t> shape;
  bool requires_grad = false;
  // Whether the value is the undefined tensor.
  bool undefined = false;
};

int64_t elements(const Type& type);

// The kinds of operations. "numbers" is Operation::numbers.
enum class Kind {
  // Creates a value on the worker. kLeaf: numbers[0] is the index of the leaf.
  kLeaf,
  kConstant,
  // Elementwise operations, with broadcasting. kScale multiplies by numbers[0], in the real families by
  // numbers[0] / 16.
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
  // Converts to the Dtype numbers[0].
  kCast,
  // Views. numbers: the dimensions, then the index, or start and length. kExpand: the new shape.
  kTranspose,
  kSelect,
  kNarrow,
  kUnsqueeze,
  kExpand,
  kUnbind,
  kSplit,
  kReshape,
  kDetach,
  // numbers: the dimension, and for kIndexSelect also the indices.
  kCat,
  kStack,
  kIndexSelect,
  // numbers: whether the gradient is sparse (0 or 1), then the rows.
  kEmbedding,
  // The sum of its two inputs; the gradient of the first one is undefined.
  kDropGradient,
  // Registers a hook that doubles the gradient of the input. numbers: the index of the hook.
  kHook,
  // Operations that change their first input in place.
  kAddInPlace,
  kScaleInPlace,
  kMulInPlace,
  kCopyInPlace,
  // Creates a reference to a value of this worker.
  kMakeRef,
  // Fetches the value of a reference.
  kFetch,
  // Runs the block `block` on its worker. kRemote: the block has one result, which stays there, and the
  // output is a reference to it.
  kCall,
  kRemote,
  // Waits for the asynchronous operation with the same `ticket`.
  kWait,
};

const char* name(Kind kind);

struct Operation {
  Kind kind = Kind::kConstant;
  // Indices of values of the block. kNothing means the undefined tensor, and is allowed only as an argument
  // of a call.
  std::vector<int> inputs;
  std::vector<int> outputs;
  std::vector<int64_t> numbers;
  // Indices of references of the block.
  std::vector<int> ref_inputs;
  std::vector<int> ref_outputs;
  int block = -1;
  // kCall, kFetch: the operation is asynchronous if this is not negative. If the block has no kWait with the
  // same ticket, its result is never waited for.
  int ticket = -1;
};
inline constexpr int kNothing = -1;

struct Reference {
  int owner = 0;
  Type type;
};

// The body of a handler. Block 0 is the main program.
struct Block {
  int agent = 0;
  // Whether the handler is a coroutine that returns a Future, or else a plain function.
  bool asynchronous = false;
  // The types of all values. The first `parameters` values are the arguments.
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
  // Whether the leaf has a hook that doubles its gradient.
  bool hook = false;
  uint64_t seed = 0;
};

struct Root {
  // Index of the root in the results of block 0.
  int result = 0;
  // The seed for the data of its grad_root. 0 means no grad_root; the root must then have one element.
  uint64_t seed = 0;
};

struct Pass {
  std::vector<Root> roots;
  bool retain_graph = false;
  // The leaves that get gradients. Empty means all leaves.
  std::vector<int> inputs;
  // Always false: the engine does not support create_graph yet.
  bool create_graph = false;
};

enum class Family {
  // Small integers in float64 (and float32), so that the order of additions does not change a sum.
  kExact,
  // Real numbers in float32.
  kReal,
  // Real numbers in float32, without operations whose bits depend on the layout of a tensor in memory.
  kRealPlain,
};

const char* name(Family family);

struct Program {
  uint64_t seed = 0;
  Family family = Family::kExact;
  int agents = 2;
  // The worker that calls backward(). The main program runs on blocks[0].agent.
  int backward_agent = 0;
  int hooks = 0;
  std::vector<Leaf> leaves;
  std::vector<Block> blocks;
  std::vector<Pass> passes;
};

// Returns the blocks that the main program calls, directly or indirectly, and block 0, in ascending order.
std::vector<int> blocks_called(const Program& program);

std::string to_text(const Program& program);

}  // namespace programs
