// Framing: numbers are 8 bytes as in memory (both ends are one machine), texts and tensors carry their length first.
#include "channel.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

namespace dsalt::verification {
namespace {

constexpr std::uint64_t max_text_bytes = std::uint64_t{1} << 20;
constexpr std::uint64_t max_items = 1 << 16;

std::uint64_t checked(std::uint64_t value, std::uint64_t limit) {
  if (value > limit) throw ChannelBroken("sent a number out of range");
  return value;
}

}  // namespace

Channel::Channel(Channel&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), patience_(other.patience_) {}

Channel& Channel::operator=(Channel&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(patience_, other.patience_);
  return *this;
}

Channel::~Channel() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void Channel::send(const void* data, std::size_t bytes) {
  const char* position = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = ::send(descriptor_, position, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) throw ChannelBroken(std::string("cannot send: ") + std::strerror(errno));
    position += sent;
    bytes -= static_cast<std::size_t>(sent);
  }
}

void Channel::receive(void* data, std::size_t bytes) {
  char* position = static_cast<char*>(data);
  while (bytes > 0) {
    pollfd ready = {descriptor_, POLLIN, 0};
    const int events = ::poll(&ready, 1, patience_);
    if (events < 0 && errno == EINTR) continue;
    if (events == 0) throw ChannelBroken("did not answer in time");
    const ssize_t received = ::recv(descriptor_, position, bytes, 0);
    if (received < 0 && errno == EINTR) continue;
    if (received < 0) throw ChannelBroken(std::string("cannot receive: ") + std::strerror(errno));
    if (received == 0) throw ChannelBroken("ended");
    position += received;
    bytes -= static_cast<std::size_t>(received);
  }
}

std::uint64_t Channel::receive_number() {
  std::uint64_t value = 0;
  receive(&value, sizeof value);
  return value;
}

void Channel::send_text(const std::string& text) {
  const std::size_t length = std::min<std::size_t>(text.size(), max_text_bytes);
  send_number(length);
  send(text.data(), length);
}

std::string Channel::receive_text() {
  std::string text(checked(receive_number(), max_text_bytes), '\0');
  receive(text.data(), text.size());
  return text;
}

void Channel::send_tensors(const Tensors& tensors) {
  send_number(tensors.size());
  for (const auto& [name, tensor] : tensors) {
    const TensorView& view = tensor.view();
    send_text(name);
    send_number(static_cast<std::uint64_t>(view.dtype));
    send_number(static_cast<std::uint64_t>(view.rank));
    for (int dim = 0; dim < view.rank; ++dim)
      send_number(static_cast<std::uint64_t>(view.shape[static_cast<std::size_t>(dim)]));
    send(view.data, static_cast<std::size_t>(view.size()) * size_of(view.dtype));
  }
}

Tensors Channel::receive_tensors(std::uint64_t& bytes_left) {
  Tensors tensors;
  for (std::uint64_t count = checked(receive_number(), max_items); count > 0; --count) {
    const std::string name = receive_text();
    const auto dtype = static_cast<DType>(checked(receive_number(), static_cast<std::uint64_t>(DType::i32)));
    const std::uint64_t rank = checked(receive_number(), max_rank);
    std::vector<std::int64_t> shape;
    std::uint64_t product = size_of(dtype), bytes = product;
    for (std::uint64_t dim = 0; dim < rank; ++dim) {
      const std::uint64_t extent = receive_number();
      product *= std::max<std::uint64_t>(checked(extent, bytes_left / product), 1);
      bytes *= extent;
      shape.push_back(static_cast<std::int64_t>(extent));
    }
    bytes_left -= checked(bytes, bytes_left);
    const Tensor tensor = Tensor::empty(shape, dtype);
    receive(tensor.view().data, bytes);
    tensors[name] = tensor;
  }
  return tensors;
}

void Channel::send_case(const Case& c) {
  send_text(c.name);
  send_number(static_cast<std::uint64_t>(c.op));
  send_number(c.attributes.size());
  for (const auto& [name, value] : c.attributes) {
    send_text(name);
    send_number(value.index());
    if (const auto* integer = std::get_if<std::int64_t>(&value))
      send_number(static_cast<std::uint64_t>(*integer));
    else if (const auto* real = std::get_if<double>(&value))
      send_number(std::bit_cast<std::uint64_t>(*real));
    else
      send_text(std::get<std::string>(value));
  }
  send_tensors(c.inputs);
  send_tensors(c.outputs);
}

Case Channel::receive_case(std::uint64_t max_bytes) {
  Case c;
  c.name = receive_text();
  c.op = all_operations[checked(receive_number(), std::size(all_operations) - 1)];
  for (std::uint64_t count = checked(receive_number(), max_items); count > 0; --count) {
    const std::string name = receive_text();
    switch (checked(receive_number(), 2)) {
      case 0: c.attributes[name] = static_cast<std::int64_t>(receive_number()); break;
      case 1: c.attributes[name] = std::bit_cast<double>(receive_number()); break;
      default: c.attributes[name] = receive_text(); break;
    }
  }
  c.inputs = receive_tensors(max_bytes);
  c.outputs = receive_tensors(max_bytes);
  return c;
}

}  // namespace dsalt::verification
