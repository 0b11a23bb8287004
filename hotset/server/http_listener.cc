#include "hotset/server/http_listener.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string_view>
#include <utility>

#include "hotset/base/clock.h"
#include "hotset/base/log.h"
#include "hotset/server/api_error.h"

namespace hotset::server {
namespace {

constexpr double kSliceS = 0.1;  // how long a wait lasts before it looks whether to stop
constexpr int kBacklog = 128;
constexpr int kSendBuffer = 128 << 10;
constexpr double kGraceS = 3;  // for answers that are being written when all ends

thread_local Connection* current_connection = nullptr;

double now_us() { return steady_clock().now_us(); }

void address_text(const sockaddr_storage& address, socklen_t n_bytes, std::string& ip, int& port) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> service{};
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), n_bytes, host.data(), host.size(),
                  service.data(), service.size(), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return;
  }
  ip = host.data();
  port = std::atoi(service.data());
}

// An answer without a handler's help, behind which the connection ends.
std::string refusal(const ApiError& error) {
  const std::string body = error_body(error);
  return fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: application/json; charset=utf-8\r\n{}Connection: close\r\n"
      "Content-Length: {}\r\n\r\n{}",
      error.status, httplib::status_message(error.status),
      error.status == 503 ? "Retry-After: 1\r\n" : "", body.size(), body);
}

// Takes what the client still sends, for a moment: a connection that is closed over unread bytes is
// reset, and the client might lose the answer.
void linger(int fd) {
  constexpr size_t kMostBytes = size_t{256} << 20;
  constexpr double kMostUs = 5e6;
  shutdown(fd, SHUT_WR);
  const double end_us = now_us() + kMostUs;
  std::array<char, 1 << 16> rest{};
  size_t n_read = 0;
  while (n_read < kMostBytes && now_us() < end_us) {
    pollfd p{.fd = fd, .events = POLLIN, .revents = 0};
    if (poll(&p, 1, 1000) <= 0) return;
    const ssize_t n = recv(fd, rest.data(), rest.size(), MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return;
    n_read += n > 0 ? static_cast<size_t>(n) : 0;
  }
}

}  // namespace

// --- Connection

Connection::Connection(int fd, const HttpLimits& limits) : fd_(fd), limits_(limits) {}

Connection::~Connection() {
  if (closes_) linger(fd_);
  close(fd_);
}

Connection* Connection::current() { return current_connection; }

bool Connection::wait(int16_t events, double timeout_s) const {
  const double end_us = now_us() + timeout_s * 1e6;
  while (true) {
    const double left_ms = std::max(0.0, (end_us - now_us()) / 1e3);
    pollfd p{.fd = fd_, .events = events, .revents = 0};
    const int n = poll(&p, 1, static_cast<int>(left_ms) + 1);
    if (n > 0) return true;  // an error or a hang-up shows when it is read or written
    if (n == 0 || errno != EINTR) return false;
  }
}

bool Connection::is_readable() const { return taken_ < buffer_.size() || wait(POLLIN, gap_s_); }

bool Connection::is_writable() const { return wait(POLLOUT, limits_.write_gap_s); }

bool Connection::wait_for_request(const std::atomic<bool>& stops) {
  const double end_us = now_us() + limits_.idle_s * 1e6;
  while (taken_ == buffer_.size()) {
    if (stops || now_us() > end_us) return false;
    if (!wait(POLLIN, kSliceS)) continue;
    std::array<char, 1> byte{};
    const ssize_t n = recv(fd_, byte.data(), 1, MSG_PEEK | MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return false;
    if (n > 0) break;
  }
  deadline_us_ = now_us() + limits_.header_s * 1e6;
  gap_s_ = limits_.header_s;
  return true;
}

ssize_t Connection::receive() {
  constexpr size_t kPiece = 1 << 16;
  const size_t n_before = buffer_.size();
  buffer_.resize(n_before + kPiece);
  ssize_t n = -1;
  do {
    n = recv(fd_, buffer_.data() + n_before, kPiece, 0);
  } while (n < 0 && errno == EINTR);
  buffer_.resize(n_before + (n > 0 ? static_cast<size_t>(n) : 0));
  return n;
}

ApiResult<void> Connection::read_head() {
  buffer_.erase(0, taken_);
  taken_ = 0;
  size_t n_checked = 0;
  bool may_skip_line = true;  // behind the body before, as some old clients send one
  while (true) {
    if (may_skip_line && buffer_.starts_with("\r\n")) {
      buffer_.erase(0, 2);
      may_skip_line = false;
    }
    if (buffer_ != "\r") {
      HOTSET_TRY(const std::optional<size_t> end, find_head_end(buffer_, n_checked));
      n_checked = buffer_.size();
      if (end) {
        HOTSET_TRY(head_, parse_request_head(std::string_view(buffer_).substr(0, *end)));
        // Who has sent some of the body already does not wait.
        owes_continue_ = head_.expects_continue && buffer_.size() == *end;
        buffer_.replace(0, *end, head_for_library(head_));
        break;
      }
    }
    const double left_s = (deadline_us_ - now_us()) / 1e6;
    if (left_s <= 0 || !wait(POLLIN, left_s)) {
      return std::unexpected(
          ApiError{.status = 408, .message = "the header of the request came too slowly"});
    }
    if (receive() <= 0) return std::unexpected(ApiError{.status = 0});
  }
  deadline_us_ = now_us() + limits_.body_s * 1e6;
  gap_s_ = limits_.read_gap_s;
  return {};
}

ssize_t Connection::read(char* out, size_t n_bytes) {
  if (taken_ == buffer_.size()) {
    if (std::exchange(owes_continue_, false)) {
      constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
      if (write(kContinue.data(), kContinue.size()) <= 0) return -1;
    }
    const double left_s = (deadline_us_ - now_us()) / 1e6;
    if (left_s <= 0 || !wait(POLLIN, std::min(gap_s_, left_s))) return -1;
    buffer_.clear();
    taken_ = 0;
    if (const ssize_t n = receive(); n <= 0) return n;
  }
  const size_t n = std::min(n_bytes, buffer_.size() - taken_);
  std::memcpy(out, buffer_.data() + taken_, n);
  taken_ += n;
  return static_cast<ssize_t>(n);
}

ssize_t Connection::write(const char* data, size_t n_bytes) {
  while (true) {
    if (!wait(POLLOUT, limits_.write_gap_s)) return -1;
    const ssize_t n = send(fd_, data, n_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0 || (errno != EINTR && errno != EAGAIN)) return n;
  }
}

void Connection::get_remote_ip_and_port(std::string& ip, int& port) const {
  sockaddr_storage address{};
  socklen_t n_bytes = sizeof(address);
  if (getpeername(fd_, reinterpret_cast<sockaddr*>(&address), &n_bytes) == 0) {
    address_text(address, n_bytes, ip, port);
  }
}

void Connection::get_local_ip_and_port(std::string& ip, int& port) const {
  sockaddr_storage address{};
  socklen_t n_bytes = sizeof(address);
  if (getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &n_bytes) == 0) {
    address_text(address, n_bytes, ip, port);
  }
}

bool Connection::peer_has_left() const {
  std::array<char, 1> byte{};
  const ssize_t n = recv(fd_, byte.data(), 1, MSG_PEEK | MSG_DONTWAIT);
  return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}

void Connection::shut_down() const { shutdown(fd_, SHUT_RDWR); }

// --- HttpListener

HttpListener::HttpListener(HttpLimits limits) : limits_(limits) {
  // Handlers read bodies themselves and count; this is for what they do not read.
  set_payload_max_length(limits_.max_body_bytes);
  // What answers say about the connection.
  set_keep_alive_timeout(static_cast<time_t>(limits_.idle_s));
  set_keep_alive_max_count(1 << 20);
}

HttpListener::~HttpListener() {
  end();
  if (listen_fd_ >= 0) close(listen_fd_);
}

Status HttpListener::bind(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string service = std::to_string(port);
  if (const int error = getaddrinfo(host.c_str(), service.c_str(), &hints, &found); error != 0) {
    return make_error(ErrorCode::kIo, "--host: found '{}', which is no address: {}", host,
                      gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, freeaddrinfo);
  int reason = 0;
  for (const addrinfo* a = addresses.get(); a != nullptr && listen_fd_ < 0; a = a->ai_next) {
    const int fd = ::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
    if (fd < 0) {
      reason = errno;
      continue;
    }
    const int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (::bind(fd, a->ai_addr, a->ai_addrlen) == 0 && ::listen(fd, kBacklog) == 0) {
      listen_fd_ = fd;
    } else {
      reason = errno;
      close(fd);
    }
  }
  if (listen_fd_ < 0) {
    return make_error(ErrorCode::kIo, "cannot listen on {}:{}: {}", host, port,
                      std::strerror(reason));
  }
  sockaddr_storage address{};
  socklen_t n_bytes = sizeof(address);
  std::string ip;
  getsockname(listen_fd_, reinterpret_cast<sockaddr*>(&address), &n_bytes);
  address_text(address, n_bytes, ip, port_);
  return {};
}

void HttpListener::start(std::function<void(int status)> on_refused) {
  HOTSET_CHECK(listen_fd_ >= 0);
  on_refused_ = std::move(on_refused);
  svr_sock_ = listen_fd_;  // httplib cuts answers off where it has none
  accepting_ = std::thread([this] { accept_connections(); });
}

void HttpListener::accept_connections() {
  while (!stops_) {
    pollfd p{.fd = listen_fd_, .events = POLLIN, .revents = 0};
    const bool is_ready = poll(&p, 1, static_cast<int>(kSliceS * 1e3)) > 0;
    close_refused();
    if (is_ready) accept_one();
  }
  for (const Refused& refused : refused_) close(refused.fd);
}

void HttpListener::accept_one() {
  const int fd = accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd < 0) {
    // Nothing that one connection does may end the others; without descriptors, wait for some.
    if (errno == EMFILE || errno == ENFILE) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return;
  }
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  // What a client does not read waits in the kernel's memory up to here, for every connection.
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kSendBuffer, sizeof(kSendBuffer));
  bool is_full = false;
  {
    const std::lock_guard lock(mutex_);
    is_full = n_threads_ >= limits_.max_connections;
    n_threads_ += is_full ? 0 : 1;
  }
  if (is_full) {
    return refuse(fd, fmt::format("{} connections are open, as many as are accepted "
                                  "(--max-connections); try again later",
                                  limits_.max_connections));
  }
  try {
    std::thread([this, fd] { serve(fd); }).detach();
  } catch (const std::exception& error) {  // bad_alloc, too
    log_warning("a connection was refused: no thread for it: {}", error.what());
    refuse(fd, "no thread for this connection; try again later");
    const std::lock_guard lock(mutex_);
    --n_threads_;
  }
}

void HttpListener::refuse(int fd, const std::string& message) {
  constexpr size_t kMost = 64;
  constexpr double kKeptUs = 1e6;
  const std::string answer = refusal({.status = 503, .message = message});
  send(fd, answer.data(), answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  // Its request is on the way: closed now, the connection would be reset, and with it the answer.
  shutdown(fd, SHUT_WR);
  refused_.push_back({.fd = fd, .until_us = now_us() + kKeptUs});
  if (refused_.size() > kMost) {
    close(refused_.front().fd);
    refused_.pop_front();
  }
  on_refused_(503);
}

void HttpListener::close_refused() {
  std::erase_if(refused_, [](const Refused& refused) {
    std::array<char, 1 << 12> rest{};
    const ssize_t n = recv(refused.fd, rest.data(), rest.size(), MSG_DONTWAIT);
    const bool has_left = n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
    const bool ends = has_left || now_us() > refused.until_us;
    if (ends) close(refused.fd);
    return ends;
  });
}

void HttpListener::serve(int fd) {
  {
    Connection connection(fd, limits_);
    {
      const std::lock_guard lock(mutex_);
      connections_.insert(&connection);
    }
    current_connection = &connection;
    std::string remote_ip;
    std::string local_ip;
    int remote_port = 0;
    int local_port = 0;
    connection.get_remote_ip_and_port(remote_ip, remote_port);
    connection.get_local_ip_and_port(local_ip, local_port);
    while (!stops_ && !connection.closes() && connection.wait_for_request(stops_)) {
      if (const ApiResult<void> head = connection.read_head(); !head) {
        if (head.error().status == 0) break;
        const std::string answer = refusal(head.error());
        connection.write(answer.data(), answer.size());
        connection.close_afterwards();
        on_refused_(head.error().status);
        break;
      }
      bool is_closed = false;
      bool goes_on = false;
      try {
        goes_on = process_request(connection, remote_ip, remote_port, local_ip, local_port, false,
                                  is_closed, [](httplib::Request&) {});
      } catch (const std::bad_alloc&) {
        // In the middle of an answer: cut off is all that it can be.
        log_warning("a connection was closed: out of memory");
      }
      if (!goes_on || is_closed) break;
    }
    current_connection = nullptr;
    const std::lock_guard lock(mutex_);
    connections_.erase(&connection);
  }
  const std::lock_guard lock(mutex_);
  --n_threads_;
  ended_.notify_all();
}

void HttpListener::end() {
  stops_ = true;
  if (accepting_.joinable()) accepting_.join();
  std::unique_lock lock(mutex_);
  // Who is reading the end of an answer may do so.
  ended_.wait_for(lock, std::chrono::duration<double>(kGraceS), [this] { return n_threads_ == 0; });
  svr_sock_ = INVALID_SOCKET;
  for (const Connection* connection : connections_) connection->shut_down();
  ended_.wait(lock, [this] { return n_threads_ == 0; });
}

int32_t HttpListener::n_connections() const {
  const std::lock_guard lock(mutex_);
  return n_threads_;
}

}  // namespace hotset::server
