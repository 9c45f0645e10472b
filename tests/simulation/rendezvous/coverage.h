#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace gradwire::rendezvous_simulation {

// What has happened to records, nodes and calls.
class Coverage {
 public:
  enum class What : uint8_t {
    kCreated,
    kEntered,
    kEnteredWaiting,
    kReady,
    kRunFull,
    kRunComplete,
    kRunLastCall,
    kRestartFailure,
    kRestartLost,
    kNextLeft,
    kNextGrown,
    kDone,
    kStoreServed,
    kSucceeded,
    kClosedFailure,
    kClosedLost,
    kClosedLeft,
    kClosedLeftJoining,
    kLostJoining,
    kLostWaiting,
    kLeftJoining,
    kLeftWaiting,
    kLetIn,
    kEnteredAgain,
    kRemovedWithWorkers,
    kEndedOk,
    kEndedAborted,
    kEndedTooLate,
    kEndedRankTaken,
    kEndedOtherSettings,
    kEndedTooFew,
    kEndedLeft,
    kEndedStoreLost,
    kAnswerLost,
    kChangeGivenUpTookEffect,
    kChangeLostRace,
    kCount
  };
  void hit(What what) { ++counts_[static_cast<int>(what)]; }
  void add(const Coverage& other) {
    for (std::size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
  }
  std::string print() const {
    std::string text;
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      text += "  " + std::string(kNames[i]) + ": " + std::to_string(counts_[i]) + "\n";
    }
    return text;
  }
  std::vector<std::string> unreached() const {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      if (counts_[i] == 0) names.push_back(kNames[i]);
    }
    return names;
  }

 private:
  static constexpr std::size_t kSize = static_cast<std::size_t>(What::kCount);
  static constexpr std::array<const char*, kSize> kNames = {
      "the first node makes the record",
      "a node enters",
      "a node enters to wait",
      "a node says that it is ready",
      "a round begins with all nodes",
      "a round begins again with the nodes it had",
      "a round begins after the last call",
      "restart: a worker failed",
      "restart: a node was lost",
      "next round: a node left",
      "next round: a node came",
      "a node is done",
      "a round's store is served",
      "the job succeeds",
      "the job fails: a worker",
      "the job fails: a lost node",
      "the job fails: a node left its round",
      "the job fails: a node left while it gathered",
      "a participant is lost while nodes gather",
      "a waiting node is lost",
      "a node goes while nodes gather",
      "a waiting node leaves",
      "waiting nodes get in",
      "a node that was removed enters again",
      "a node with workers is removed",
      "ended: succeeded",
      "ended: failed",
      "ended: too late",
      "ended: rank taken",
      "ended: other settings",
      "ended: too few nodes",
      "ended: left",
      "ended: the store is lost",
      "an answer is lost after its change took effect",
      "a change takes effect after it was given up",
      "a change meets another record",
  };
  std::array<uint64_t, kSize> counts_{};
};

}  // namespace gradwire::rendezvous_simulation
