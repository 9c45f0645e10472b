#include "gradwire/tests/autograd/check.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"

namespace programs {
namespace {

// Half of the largest number up to which a double holds every integer, and the same for a float. The numbers
// of a program with float32 values must stay below the second one.
constexpr double kExactInDouble = 0x1p52;
constexpr double kExactInFloat = 0x1p23;

bool has_float32(const Program& program) {
  for (const Block& block : program.blocks) {
    for (const Type& type : block.values) {
      if (type.dtype == Dtype::kFloat32 && !type.undefined) return true;
    }
  }
  return false;
}

std::string printed(const at::Tensor& tensor) {
  std::ostringstream out;
  out << tensor;
  return out.str();
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::ScalarType integer = a.scalar_type() == at::kDouble ? at::kLong : at::kInt;
  return at::equal(a.contiguous().view(integer), b.contiguous().view(integer));
}

std::string difference(const at::Tensor& expected, const at::Tensor& got, bool bits) {
  if (!expected.defined() && !got.defined()) return "";
  if (!expected.defined()) return absl::StrCat("got\n", printed(got), "\nexpected an undefined tensor");
  if (!got.defined()) return absl::StrCat("got an undefined tensor, expected\n", printed(expected));
  const std::string both = absl::StrCat("got\n", printed(got), "\nexpected\n", printed(expected));
  if (expected.layout() != got.layout()) return absl::StrCat("wrong layout: ", both);
  if (expected.scalar_type() != got.scalar_type()) return absl::StrCat("wrong dtype: ", both);
  const at::Tensor a = expected.is_sparse() ? expected.to_dense() : expected;
  const at::Tensor b = got.is_sparse() ? got.to_dense() : got;
  if (a.sizes() != b.sizes() || !(bits ? same_bits(a, b) : at::equal(a, b))) return both;
  return "";
}

}  // namespace

Program make_program(uint64_t seed, const GeneratorOptions& options) {
  for (uint64_t attempt = 0;; ++attempt) {
    Program program = generate(seed + (attempt << 40), options);
    program.seed = seed;
    if (attempt == 100) {
      throw std::logic_error(
          absl::StrCat("cannot make a program from seed ", seed, ": no exact program in 100 attempts"));
    }
    try {
      if (options.family == Family::kExact &&
          largest_number(program) > (has_float32(program) ? kExactInFloat : kExactInDouble)) {
        continue;
      }
    } catch (const std::exception& error) {
      throw std::logic_error(
          absl::StrCat("libtorch refuses this program: ", error.what(), "\n", to_text(program)));
    }
    return program;
  }
}

std::string difference(const Program& program, const Outcome& expected, const Outcome& got, bool bits,
                       Hooks hooks) {
  if (!expected.error.empty()) return expected.error;
  if (!got.error.empty()) return got.error;
  std::string out;
  for (std::size_t i = 0; i < expected.gradients.size(); ++i) {
    const std::string one = difference(expected.gradients[i], got.gradients[i], bits);
    if (!one.empty()) absl::StrAppend(&out, "wrong gradient of leaf ", i, ": ", one, "\n");
  }
  if (hooks == Hooks::kNone) return out;
  for (std::size_t i = 0; i < expected.hook_calls.size(); ++i) {
    const auto [defined, undefined] = got.hook_calls[i];
    if (defined == expected.hook_calls[i].first &&
        (hooks == Hooks::kDefined || undefined == expected.hook_calls[i].second)) {
      continue;
    }
    const bool leaf = i >= static_cast<std::size_t>(program.hooks);
    absl::StrAppend(&out, "wrong number of calls of the hook ", leaf ? "of leaf " : "",
                    leaf ? i - program.hooks : i, ": got ", defined, " with a gradient and ", undefined,
                    " with an undefined one, expected ", expected.hook_calls[i].first, " and ",
                    expected.hook_calls[i].second, "\n");
  }
  return out;
}

namespace {

bool uses(const Block& block, const Operation& operation) {
  const auto has = [](const std::vector<int>& list, int id) {
    return std::find(list.begin(), list.end(), id) != list.end();
  };
  for (const Operation& other : block.operations) {
    for (int output : operation.outputs) {
      if (has(other.inputs, output)) return true;
    }
    for (int output : operation.ref_outputs) {
      if (has(other.ref_inputs, output)) return true;
    }
  }
  for (int output : operation.outputs) {
    if (has(block.results, output)) return true;
  }
  for (int output : operation.ref_outputs) {
    if (has(block.ref_results, output)) return true;
  }
  return false;
}

// Removes operation `index` of block `in`, or replaces it by a constant. Returns false if neither is
// possible.
bool remove_operation(Program& program, int in, std::size_t index) {
  Block& block = program.blocks[in];
  Operation& operation = block.operations[index];
  if (operation.kind == Kind::kWait) return false;
  const int ticket = operation.ticket;
  if (!uses(block, operation)) {
    block.operations.erase(block.operations.begin() + static_cast<std::ptrdiff_t>(index));
  } else if (operation.ref_outputs.empty() && operation.kind != Kind::kConstant) {
    operation = {.kind = Kind::kConstant, .outputs = operation.outputs};
    for (int output : operation.outputs) block.values[output].requires_grad = false;
  } else {
    return false;
  }
  if (ticket >= 0) {
    std::erase_if(block.operations, [ticket](const Operation& other) {
      return other.kind == Kind::kWait && other.ticket == ticket;
    });
  }
  return true;
}

}  // namespace

Program shrink(Program program, const std::function<bool(const Program&)>& fails) {
  const auto attempt = [&](Program smaller) {
    if (!fails(smaller)) return false;
    program = std::move(smaller);
    return true;
  };
  for (bool progress = true; progress;) {
    progress = false;
    while (program.passes.size() > 1) {
      Program smaller = program;
      smaller.passes.pop_back();
      if (!attempt(std::move(smaller))) break;
      progress = true;
    }
    for (std::size_t p = 0; p < program.passes.size(); ++p) {
      for (std::size_t r = program.passes[p].roots.size(); r-- > 0;) {
        if (program.passes[p].roots.size() == 1) break;
        Program smaller = program;
        smaller.passes[p].roots.erase(smaller.passes[p].roots.begin() + static_cast<std::ptrdiff_t>(r));
        progress |= attempt(std::move(smaller));
      }
    }
    for (int b : blocks_called(program)) {
      for (std::size_t i = program.blocks[b].operations.size(); i-- > 0;) {
        if (i >= program.blocks[b].operations.size()) continue;
        Program smaller = program;
        if (remove_operation(smaller, b, i)) progress |= attempt(std::move(smaller));
      }
    }
  }
  return program;
}

}  // namespace programs
