// Accepts connections and lets httplib read requests and write answers over streams of our own, so
// that nobody can hold a thread for longer than the limits say: not with half a header, not with a
// slow body, not by not reading. Heads are read here (request_head.h); what is wrong with one is
// answered without httplib, which gets the others in its own form.
//
// One thread per connection, at most `max_connections`; further ones are answered 503 and closed.
// Thread-safe as stated.
#ifndef HOTSET_SERVER_HTTP_LISTENER_H_
#define HOTSET_SERVER_HTTP_LISTENER_H_

#include <httplib.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "hotset/base/error.h"
#include "hotset/server/api_error.h"
#include "hotset/server/http_limits.h"
#include "hotset/server/request_head.h"

namespace hotset::server {

// A connection as httplib's streams are. Thread-compatible: its own thread.
class Connection final : public httplib::Stream {
 public:
  // Owns the socket `fd`. Requires: `limits` outlives this.
  Connection(int fd, const HttpLimits& limits);
  ~Connection() override;

  // The one whose request this thread serves; null in other threads.
  static Connection* current();

  bool is_readable() const override;
  bool is_writable() const override;
  ssize_t read(char* out, size_t n_bytes) override;
  ssize_t write(const char* data, size_t n_bytes) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  socket_t socket() const override { return fd_; }

  // Waits for the first byte of a request. False: none came, the client left, or `stops` was set.
  bool wait_for_request(const std::atomic<bool>& stops);
  // Reads the head of the request that has begun; from then on the limits of bodies hold, and
  // read() gives first what head_for_library() makes of it. A client that waits for it is told to
  // go on when the first byte of the body is read, so never where the body is not.
  // Errors: those of parse_request_head(); 408: it came too slowly; status 0: the client has left.
  ApiResult<void> read_head();
  // Requires: read_head() succeeded.
  const RequestHead& head() const { return head_; }
  // Whether the client has gone: nobody will read the answer.
  bool peer_has_left() const;
  // No request follows on this connection: some of this one may be left unread.
  void close_afterwards() { closes_ = true; }
  bool closes() const { return closes_; }
  // Ends reads and writes; from any thread.
  void shut_down() const;

 private:
  bool wait(int16_t events, double timeout_s) const;
  // Appends what comes next to `buffer_`. As recv().
  ssize_t receive();

  int fd_;
  const HttpLimits& limits_;
  std::string buffer_;  // read, but not taken
  size_t taken_ = 0;
  double deadline_us_ = 0;
  double gap_s_ = 0;
  bool closes_ = false;
  RequestHead head_;
  bool owes_continue_ = false;
};

class HttpListener final : public httplib::Server {
 public:
  explicit HttpListener(HttpLimits limits);
  ~HttpListener() override;

  const HttpLimits& limits() const { return limits_; }

  // Takes the port; connections wait until start(). 0: any. Errors: kIo.
  Status bind(const std::string& host, int port);
  int port() const { return port_; }
  // Accepts connections in a thread of its own. `on_refused` gets the status of each answer that
  // was given without a handler, from any thread. Requires: bind() succeeded.
  void start(std::function<void(int status)> on_refused);
  // Accepts no more, ends all connections and waits for their threads.
  void end();

  int32_t n_connections() const;

 private:
  // A connection that was refused, and how long it is kept, so that its client reads the answer.
  struct Refused {
    int fd = -1;
    double until_us = 0;
  };

  void accept_connections();
  void accept_one();
  void serve(int fd);
  void refuse(int fd, const std::string& message);
  void close_refused();

  HttpLimits limits_;
  int port_ = 0;
  int listen_fd_ = -1;
  std::function<void(int)> on_refused_;
  std::atomic<bool> stops_ = false;
  std::deque<Refused> refused_;  // the accepting thread's own
  std::thread accepting_;
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::set<Connection*> connections_;
  int32_t n_threads_ = 0;
};

}  // namespace hotset::server

#endif  // HOTSET_SERVER_HTTP_LISTENER_H_
