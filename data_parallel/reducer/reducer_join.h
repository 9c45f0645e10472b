#pragma once

#include "gradwire/data_parallel/join/join.h"
#include "gradwire/data_parallel/reducer/reducer.h"

namespace gradwire::data_parallel {

// The steps of a replica on a rank without data.
class ReducerJoinHook : public JoinHook {
 public:
  // The reducer must outlive the hook.
  explicit ReducerJoinHook(Reducer& reducer) : reducer_(reducer) {}
  // Called by Join.
  void shadow_step(const JoinStatus& status) override { reducer_.shadow_pass(status); }
  // Called by Join.
  void all_joined(int last) override { reducer_.broadcast_from(last); }

 private:
  Reducer& reducer_;
};

}  // namespace gradwire::data_parallel
