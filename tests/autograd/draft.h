#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "gradwire/tests/autograd/generator.h"
#include "gradwire/tests/autograd/program.h"
#include "gradwire/tests/autograd/random.h"

namespace programs {

// Values that share memory.
struct Memory {
  // Somebody else may look at the memory: a leaf, what a reference shows.
  bool frozen = false;
  // A node has kept it for its backward.
  bool saved = false;
  // About how large the elements are.
  double bound = 1;
};

struct Info {
  int group = 0;
  // An operation may change it.
  bool writable = true;
  bool available = true;
  int uses = 0;
  // Nothing but messages between it and a leaf, so that a sparse gradient meets no other operation.
  bool plain = false;
};

// A block that is being written.
struct Draft {
  Block block;
  int depth = 0;
  std::vector<Memory> groups;
  std::vector<Info> infos;
  std::vector<int> ref_uses;
  // What was begun asynchronously: the ticket and its outputs.
  std::vector<Operation> under_way;
  int next_ticket = 0;

  const Type& type(int value) const { return block.values[value]; }
  Memory& group(int value) { return groups[infos[value].group]; }
};

// Writes one program.
class Generator {
 public:
  Generator(uint64_t seed, const GeneratorOptions& options);
  Program run();

 private:
  bool exact() const { return program_.family == Family::kExact; }
  bool plain() const { return program_.family == Family::kRealPlain; }

  // ---- Values.
  int add_value(Draft& d, Type type, double bound, int group = -1, bool writable = true);
  // A value for which `fits`, the youngest with preference; -1 if there is none.
  int pick(Draft& d, const std::function<bool(const Type&, int)>& fits);
  int pick_float(Draft& d);
  int pick_like(Draft& d, int other, const std::function<bool(const Type&)>& fits);
  void use(Draft& d, int value) { ++d.infos[value].uses; }
  Operation& emit(Draft& d, Operation operation);
  // A new value in memory of its own.
  int compute(Draft& d, Kind kind, std::vector<int> inputs, std::vector<int64_t> numbers, Type type,
              double bound);
  int view(Draft& d, Kind kind, int of, std::vector<int64_t> numbers, std::vector<int64_t> shape,
           bool writable = true);
  std::vector<int64_t> some_shape();

  // ---- Operations. Each returns whether it found operands.
  bool leaf(Draft& d);
  // Two leaves and their sum, whose backward gives both the same gradient tensor.
  bool leaf_pair(Draft& d);
  bool binary(Draft& d, Kind kind);
  bool unary(Draft& d, Kind kind);
  bool matmul(Draft& d);
  bool sum(Draft& d, bool one_dimension);
  bool cast(Draft& d);
  bool view(Draft& d);
  bool join(Draft& d);
  bool index_select(Draft& d);
  bool embedding(Draft& d);
  bool drop_gradient(Draft& d);
  bool hook(Draft& d);
  bool change_in_place(Draft& d);

  // ---- Messages.
  // What a message makes of a value.
  int arrived(Draft& d, const Type& type, double bound, bool plain);
  bool make_ref(Draft& d);
  bool fetch(Draft& d, int ref = -1);
  // Emits a call or a fetch, now and then an asynchronous one.
  void begin(Draft& d, Operation operation);
  bool wait(Draft& d, std::size_t which);
  bool call(Draft& d);

  // ---- Blocks.
  bool step(Draft& d);
  void fill(Draft& d, int operations);
  // Everything that would be unused, folded into one scalar; -1 when there is nothing.
  int fold(Draft& d);
  void choose_results(Draft& d, bool only_one);
  int constant(Draft& d);
  void choose_roots(Draft& d);

  Random random_;
  const GeneratorOptions options_;
  Program program_;
  // Everything that is sent is used.
  bool tidy_;
  bool float32_;
  double limit_;
};

}  // namespace programs
