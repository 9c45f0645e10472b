#include "gradwire/tools/bench/run/serve_process.h"

#include <unistd.h>

#include <exception>

#include "gradwire/tools/bench/run/channel.h"
#include "gradwire/tools/bench/run/measure.h"

namespace gradwire::bench {

void serve_process(int fd, BenchProcess& process) {
  Channel channel(fd);
  for (;;) {
    const absl::StatusOr<Order> order = channel.receive_order();
    if (!order.ok() || order->kind == Order::Kind::kQuit) _exit(0);
    Answer answer;
    try {
      switch (order->kind) {
        case Order::Kind::kListen:
          answer.address = process.listen(order->endpoint);
          break;
        case Order::Kind::kJoin:
          process.join(order->endpoint);
          break;
        case Order::Kind::kRun:
          answer.measurement = process.run(order->task);
          break;
        case Order::Kind::kUsage:
          answer.cpu_us = cpu_microseconds();
          break;
        case Order::Kind::kQuit:
          break;
      }
    } catch (const std::exception& e) {
      answer.error = e.what();
      if (answer.error.empty()) answer.error = "exception without a message";
    }
    if (!channel.send(answer).ok()) _exit(0);
  }
}

}  // namespace gradwire::bench
