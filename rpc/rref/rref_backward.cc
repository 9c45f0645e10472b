#include "gradwire/rpc/rref/rref_backward.h"

namespace gradwire::rpc {
namespace {

RRefBackward& slot() {
  static RRefBackward backward = nullptr;
  return backward;
}

}  // namespace

RRefBackward rref_backward() { return slot(); }
void set_rref_backward(RRefBackward backward) { slot() = backward; }

}  // namespace gradwire::rpc
