#pragma once

#include <atomic>
#include <cstdint>

// For tests: memory and events of the test accelerator that other processes use, through
// device/device_transfer.h. Several agents of one process use it as well.
namespace gradwire::lag {

// Faults of the simulated driver. They hold for the whole process, from the moment at which they are set.
struct IpcFaults {
  // No memory can be shared: the driver lacks the support.
  std::atomic<bool> no_sharing{false};
  // The driver refuses to export memory of an allocation, or an event.
  std::atomic<bool> no_export{false};
  std::atomic<bool> no_event{false};
  // This process cannot open what others export, as in a container with its own IPC namespace.
  std::atomic<bool> no_open{false};
  // The driver does not name the physical device.
  std::atomic<bool> no_identity{false};
  // Opened memory has another content than the exporter's.
  std::atomic<bool> wrong_memory{false};
};
IpcFaults& ipc_faults();

// Objects that exist in this process.
struct IpcCounts {
  // Events that were made here and events that were opened here.
  int64_t made_events = 0;
  int64_t opened_events = 0;
  // Allocations that are open here, and the number that was ever opened.
  int64_t opened_memories = 0;
  int64_t memories_ever = 0;
  // Copies from memory of other processes that were enqueued here.
  int64_t copies = 0;
};
IpcCounts ipc_counts();

}  // namespace gradwire::lag
