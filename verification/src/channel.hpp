// Cases and texts over a socket between the process that parses a case file and the one that asked for it.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "dsalt/verification/case.hpp"

namespace dsalt::verification {

/// The other side is gone, or what it sent makes no sense.
struct ChannelBroken : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// One end of a stream socket; owns the descriptor. Every call throws ChannelBroken.
class Channel {
 public:
  Channel() = default;
  explicit Channel(int descriptor) : descriptor_(descriptor) {}
  Channel(Channel&& other) noexcept;
  Channel& operator=(Channel&& other) noexcept;
  ~Channel();

  bool open() const { return descriptor_ >= 0; }
  /// Longest wait for the next bytes; none by default.
  void set_patience(int milliseconds) { patience_ = milliseconds; }

  void send_number(std::uint64_t value) { send(&value, sizeof value); }
  void send_text(const std::string& text);
  void send_case(const Case& c);

  std::uint64_t receive_number();
  std::string receive_text();
  /// All tensors together may have `max_bytes` bytes.
  Case receive_case(std::uint64_t max_bytes);

 private:
  void send(const void* data, std::size_t bytes);
  void receive(void* data, std::size_t bytes);
  void send_tensors(const Tensors& tensors);
  Tensors receive_tensors(std::uint64_t& bytes_left);

  int descriptor_ = -1;
  int patience_ = -1;
};

}  // namespace dsalt::verification
