// The part of NcclCollectives that gives several collectives to NCCL as one group.
//
// The steps of a collective (Call, and the function that calls NCCL) refer to variables of the function that
// called perform(). They must stay alive until NCCL has got all collectives. So perform() does not return for
// the calls but the last: it runs the next call instead, which calls perform() again. The last one performs
// all that were collected, as one collective, and its status is returned through all of them.
#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/nccl/nccl_collectives.h"

namespace gradwire::collectives::nccl {
namespace {

// The number of collectives in one group of NCCL's. It limits the depth of the calls.
constexpr std::size_t kMostTogether = 64;

bool failed(ncclResult_t result) { return result != ncclSuccess && result != ncclInProgress; }

}  // namespace

struct NcclCollectives::Together {
  const std::vector<std::function<absl::Status()>>& calls;
  // The call that runs next, and the end of this part.
  std::size_t next;
  std::size_t end;

  struct Member {
    const Call* call;
    NcclComms::Call body;
  };
  std::vector<Member> members = {};
};

absl::Status NcclCollectives::together(const std::vector<std::function<absl::Status()>>& calls) {
  for (std::size_t first = 0; first < calls.size(); first += kMostTogether) {
    Together part{calls, first + 1, std::min(first + kMostTogether, calls.size())};
    together_ = &part;
    // Also if the call throws: the next collective must not find a part that has ended.
    const absl::Cleanup leave = [this] { together_ = nullptr; };
    // A call that is refused returns without perform(). Then nothing has been given to NCCL.
    GRADWIRE_RETURN_IF_ERROR(calls[first]());
  }
  return absl::OkStatus();
}

absl::Status NcclCollectives::join(const Call& call, absl::Time deadline, NcclComms::Call body) {
  Together& part = *together_;
  if (!part.members.empty() && call.devices != part.members.front().call->devices) {
    return absl::InvalidArgumentError(
        absl::StrCat("coalesced collectives must be on the same devices: got ",
                     absl::StrJoin(call.devices, ", ", absl::StreamFormatter()), ", expected ",
                     absl::StrJoin(part.members.front().call->devices, ", ", absl::StreamFormatter())));
  }
  part.members.push_back({&call, body});
  if (part.next < part.end) return part.calls[part.next++]();

  // From here on perform() performs.
  together_ = nullptr;
  Call all{.what = part.members.size() == 1 ? call.what : "coalesced", .devices = call.devices};
  bool has_second = false;
  for (const Together::Member& member : part.members) {
    all.tensors.insert(all.tensors.end(), member.call->tensors.begin(), member.call->tensors.end());
    all.blocks = all.blocks || member.call->blocks;
    has_second = has_second || member.call->second != nullptr;
  }
  const auto for_all = [&part](std::function<void(std::size_t)> Call::*step) {
    return [&part, step](std::size_t device) {
      for (const Together::Member& member : part.members) {
        if (member.call->*step != nullptr) (member.call->*step)(device);
      }
    };
  };
  all.before = for_all(&Call::before);
  all.after = for_all(&Call::after);
  all.between = for_all(&Call::between);
  if (has_second) {
    all.second = [&part](std::size_t device, ncclComm_t comm, cudaStream_t stream) {
      ncclResult_t result = ncclSuccess;
      for (const Together::Member& member : part.members) {
        if (member.call->second != nullptr && !failed(result))
          result = member.call->second(device, comm, stream);
      }
      return result;
    };
  }
  return perform(all, deadline, [&part](std::size_t device, ncclComm_t comm, cudaStream_t stream) {
    ncclResult_t result = ncclSuccess;
    for (const Together::Member& member : part.members) {
      if (!failed(result)) result = member.body(device, comm, stream);
    }
    return result;
  });
}

}  // namespace gradwire::collectives::nccl
