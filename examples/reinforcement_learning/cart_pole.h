#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace gradwire::examples {

// A pole stands on a cart, hinged to it. Barto, Sutton and Anderson (1983) give the equations.
class CartPole {
 public:
  // Position and speed of the cart, angle and angular speed of the pole; in metres, radians and seconds.
  using State = std::vector<double>;

  explicit CartPole(int64_t seed) : random_(seed) {}
  State reset() {
    std::uniform_real_distribution<double> near_zero(-0.05, 0.05);
    state_ = {near_zero(random_), near_zero(random_), near_zero(random_), near_zero(random_)};
    return state_;
  }
  // Pushes the cart to the right (action 1) or to the left (0) for a fiftieth of a second.
  State step(int64_t action) {
    constexpr double kGravity = 9.8, kForce = 10, kSeconds = 0.02;
    constexpr double kCart = 1.0, kPole = 0.1, kHalfLength = 0.5, kMass = kCart + kPole;
    double &x = state_[0], &speed = state_[1], &angle = state_[2], &turn = state_[3];
    const double sine = std::sin(angle), cosine = std::cos(angle);
    const double push = ((action == 1 ? kForce : -kForce) + kPole * kHalfLength * turn * turn * sine) / kMass;
    const double turn_rate =
        (kGravity * sine - cosine * push) / (kHalfLength * (4.0 / 3.0 - kPole * cosine * cosine / kMass));
    x += kSeconds * speed;
    speed += kSeconds * (push - kPole * kHalfLength * turn_rate * cosine / kMass);
    angle += kSeconds * turn;
    turn += kSeconds * turn_rate;
    return state_;
  }
  bool fallen() const { return std::abs(state_[0]) > 2.4 || std::abs(state_[2]) > 0.2095; }

 private:
  std::mt19937_64 random_;
  State state_;
};

}  // namespace gradwire::examples
