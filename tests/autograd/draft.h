#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "gradwire/tests/autograd/generator.h"
#include "gradwire/tests/autograd/program.h"
#include "gradwire/tests/autograd/random.h"

namespace programs {

// The memory of a group of values that share it.
struct Memory {
  // Whether others may read the memory, so that no operation may change it: memory of a leaf, or of a value
  // to which a reference exists.
  bool frozen = false;
  // Whether an autograd node has saved the memory for its backward.
  bool saved = false;
  // An estimate of the largest element.
  double bound = 1;
};

// The properties of a value that the generator needs.
struct Info {
  // Index in Draft::groups.
  int group = 0;
  // Whether an operation may change the value in place.
  bool writable = true;
  // False until the message that brings the value has been waited for.
  bool available = true;
  int uses = 0;
  // Whether there are only messages between the value and a leaf. Then a sparse gradient reaches the leaf
  // without another operation.
  bool plain = false;
};

// A block that the generator is writing.
struct Draft {
  Block block;
  int depth = 0;
  std::vector<Memory> groups;
  std::vector<Info> infos;
  std::vector<int> ref_uses;
  // Asynchronous operations whose kWait has not been written yet.
  std::vector<Operation> in_flight;
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
  // Returns a random available value for which `fits` is true, with a preference for new values; -1 if none
  // fits.
  int pick(Draft& d, const std::function<bool(const Type&, int)>& fits);
  int pick_float(Draft& d);
  int pick_like(Draft& d, int other, const std::function<bool(const Type&)>& fits);
  void use(Draft& d, int value) { ++d.infos[value].uses; }
  Operation& emit(Draft& d, Operation operation);
  // Adds an operation whose output has memory of its own, and returns the output.
  int compute(Draft& d, Kind kind, std::vector<int> inputs, std::vector<int64_t> numbers, Type type,
              double bound);
  int view(Draft& d, Kind kind, int of, std::vector<int64_t> numbers, std::vector<int64_t> shape,
           bool writable = true);
  std::vector<int64_t> some_shape();

  // ---- Operations. Each function adds one, and returns false if no operands fit.
  bool leaf(Draft& d);
  // Adds two leaves and their sum. The backward of the sum passes the same gradient tensor to both.
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
  // Adds a value that a message brings.
  int add_received(Draft& d, const Type& type, double bound, bool plain);
  bool make_ref(Draft& d);
  bool fetch(Draft& d, int ref = -1);
  // Adds a call or a fetch. Half of them are asynchronous.
  void begin(Draft& d, Operation operation);
  bool wait(Draft& d, std::size_t which);
  bool call(Draft& d);

  // ---- Blocks.
  bool step(Draft& d);
  void fill(Draft& d, int operations);
  // Adds the sum of all unused values that require grad, as a scalar, and returns it. Returns -1 if there are
  // none, or if the program need not use all values (tidy_).
  int fold(Draft& d);
  void choose_results(Draft& d, bool only_one);
  int constant(Draft& d);
  void choose_roots(Draft& d);

  Random random_;
  const GeneratorOptions options_;
  Program program_;
  // Whether every value that is sent is used.
  bool tidy_;
  bool float32_;
  double limit_;
};

}  // namespace programs
