#include "gradwire/tests/simulation/p2p/oracle.h"

#include <algorithm>

namespace gradwire::p2p_simulation {

void Oracle::match(int operation, std::vector<int>& own, std::vector<int>& others) {
  Operation& one = operations_[operation];
  if (ended(one.channel)) return;
  for (std::size_t i = 0; i < others.size(); ++i) {
    Operation& other = operations_[others[i]];
    const Operation& message = one.is_send() ? one : other;
    const Operation& receive = one.is_send() ? other : one;
    if (one.channel != other.channel || one.tag != other.tag) continue;
    if (receive.peer != kAnyRank && receive.peer != message.rank) continue;
    one.partner = other.number;
    other.partner = one.number;
    others.erase(others.begin() + i);
    return;
  }
  own.push_back(operation);
}

bool Oracle::add_receive(int receive, bool may_wait) {
  if (ended(operations_[receive].channel)) return false;
  match(receive, receives_, messages_);
  if (operations_[receive].partner < 0 && !may_wait) receives_.pop_back();
  return operations_[receive].partner >= 0 || may_wait;
}

void Oracle::remove(int operation) {
  std::erase(messages_, operation);
  std::erase(receives_, operation);
}

void Oracle::end_channel(uint64_t channel) {
  ended_.insert(channel);
  const auto in_channel = [&](int each) { return operations_[each].channel == channel; };
  std::erase_if(messages_, in_channel);
  std::erase_if(receives_, in_channel);
}

bool Oracle::waits(int operation) const {
  return std::count(messages_.begin(), messages_.end(), operation) +
             std::count(receives_.begin(), receives_.end(), operation) >
         0;
}

}  // namespace gradwire::p2p_simulation
