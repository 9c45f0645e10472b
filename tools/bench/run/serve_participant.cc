#include "gradwire/tools/bench/run/serve_participant.h"

#include <unistd.h>

#include <exception>

#include "gradwire/tools/bench/run/channel.h"
#include "gradwire/tools/bench/run/measure.h"

namespace gradwire::bench {

void serve_participant(int fd, Participant& participant) {
  Channel channel(fd);
  for (;;) {
    const absl::StatusOr<Order> order = channel.receive_order();
    if (!order.ok() || order->kind == Order::Kind::kQuit) _exit(0);
    Answer answer;
    try {
      switch (order->kind) {
        case Order::Kind::kListen:
          answer.address = participant.listen(order->place);
          break;
        case Order::Kind::kJoin:
          participant.join(order->place);
          break;
        case Order::Kind::kRun:
          answer.measurement = participant.run(order->task);
          break;
        case Order::Kind::kUsage:
          answer.cpu_us = cpu_microseconds();
          break;
        case Order::Kind::kQuit:
          break;
      }
    } catch (const std::exception& e) {
      answer.error = e.what();
      if (answer.error.empty()) answer.error = "an exception without a message";
    }
    if (!channel.send(answer).ok()) _exit(0);
  }
}

}  // namespace gradwire::bench
