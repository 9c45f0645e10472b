#include <cmath>
#include <utility>

#include "gradwire/tests/autograd/draft.h"

namespace programs {
namespace {

constexpr int kMaxBlocks = 9;
constexpr int kMaxDepth = 4;

}  // namespace

int Generator::add_received(Draft& d, const Type& type, double bound, bool plain) {
  const int out = add_value(d, type, bound);
  d.infos[out].plain = plain;
  return out;
}

bool Generator::make_ref(Draft& d) {
  const int a = pick_float(d);
  if (a < 0) return false;
  d.group(a).frozen = true;
  d.block.refs.push_back({d.block.agent, d.type(a)});
  d.ref_uses.push_back(0);
  emit(d,
       {.kind = Kind::kMakeRef, .inputs = {a}, .ref_outputs = {static_cast<int>(d.block.refs.size()) - 1}});
  if (!tidy_) return true;
  // The reference alone does not count as a use of the value. A fetch does.
  --d.infos[a].uses;
  return fetch(d, static_cast<int>(d.block.refs.size()) - 1);
}

bool Generator::fetch(Draft& d, int ref) {
  if (d.block.refs.empty()) return false;
  if (ref < 0) ref = static_cast<int>(random_.below(d.block.refs.size()));
  const Reference reference = d.block.refs[ref];
  const bool local = reference.owner == d.block.agent;
  // The size of the referenced numbers is unknown here, so assume a large bound.
  const int out = add_value(d, reference.type, std::sqrt(limit_));
  if (local) {
    d.group(out).frozen = true;
    d.infos[out].writable = false;
  }
  ++d.ref_uses[ref];
  Operation operation{.kind = Kind::kFetch, .outputs = {out}, .ref_inputs = {ref}};
  begin(d, operation);
  return true;
}

void Generator::begin(Draft& d, Operation operation) {
  if (random_.percent(50)) {
    operation.ticket = d.next_ticket++;
    for (int output : operation.outputs) d.infos[output].available = false;
    d.in_flight.push_back(operation);
  }
  emit(d, std::move(operation));
}

bool Generator::wait(Draft& d, std::size_t which) {
  if (which >= d.in_flight.size()) return false;
  const Operation operation = d.in_flight[which];
  d.in_flight.erase(d.in_flight.begin() + static_cast<std::ptrdiff_t>(which));
  for (int output : operation.outputs) d.infos[output].available = true;
  for (int ref : operation.ref_outputs) d.ref_uses[ref] = 0;
  emit(d, {.kind = Kind::kWait, .ticket = operation.ticket});
  return true;
}

bool Generator::call(Draft& d) {
  if (d.depth >= kMaxDepth || static_cast<int>(program_.blocks.size()) >= kMaxBlocks) return false;
  Draft callee;
  callee.depth = d.depth + 1;
  callee.block.agent = static_cast<int>(random_.below(program_.agents));
  callee.block.asynchronous = random_.percent(40);
  Operation operation;
  operation.kind = !plain() && !options_.for_libtorch && random_.percent(25) ? Kind::kRemote : Kind::kCall;
  const int64_t arguments = random_.between(1, 3);
  for (int64_t i = 0; i < arguments; ++i) {
    if (!tidy_ && random_.percent(5)) {
      operation.inputs.push_back(kNothing);
      add_received(callee, {.undefined = true}, 0, false);
      continue;
    }
    const bool any = random_.percent(30);
    int a = pick(d, [any](const Type& type, int) { return any || type.requires_grad; });
    if (a < 0) a = pick(d, [](const Type&, int) { return true; });
    if (a < 0) continue;
    operation.inputs.push_back(a);
    use(d, a);
    add_received(callee, d.type(a), d.group(a).bound, d.infos[a].plain);
  }
  // emit() counts the uses of the inputs again.
  for (int input : operation.inputs) {
    if (input != kNothing) --d.infos[input].uses;
  }
  callee.block.parameters = static_cast<int>(operation.inputs.size());
  if (!d.block.refs.empty() && random_.percent(40)) {
    const int ref = static_cast<int>(random_.below(d.block.refs.size()));
    operation.ref_inputs = {ref};
    ++d.ref_uses[ref];
    callee.block.refs = {d.block.refs[ref]};
    callee.ref_uses = {0};
    callee.block.ref_parameters = 1;
  }
  operation.block = static_cast<int>(program_.blocks.size());
  program_.blocks.emplace_back();
  const bool remote = operation.kind == Kind::kRemote;
  fill(callee, static_cast<int>(random_.between(1, 6)));
  choose_results(callee, remote);

  if (remote) {
    d.block.refs.push_back({callee.block.agent, callee.type(callee.block.results[0])});
    d.ref_uses.push_back(0);
    operation.ref_outputs = {static_cast<int>(d.block.refs.size()) - 1};
    emit(d, std::move(operation));
  } else {
    for (int result : callee.block.results) {
      operation.outputs.push_back(
          add_received(d, callee.type(result), callee.group(result).bound, callee.infos[result].plain));
    }
    for (int ref : callee.block.ref_results) {
      d.block.refs.push_back(callee.block.refs[ref]);
      d.ref_uses.push_back(0);
      operation.ref_outputs.push_back(static_cast<int>(d.block.refs.size()) - 1);
    }
    if (operation.ref_outputs.empty()) {
      begin(d, std::move(operation));
    } else {
      emit(d, std::move(operation));
    }
  }
  program_.blocks[d.block.operations.back().block] = std::move(callee.block);
  return true;
}

}  // namespace programs
