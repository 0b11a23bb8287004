#include "hotset/server/api_server.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "hotset/base/allocation.h"
#include "hotset/base/clock.h"
#include "hotset/base/log.h"
#include "hotset/base/printable.h"
#include "hotset/server/api_keys.h"
#include "hotset/server/endpoints.h"
#include "hotset/server/http_listener.h"
#include "hotset/server/metrics.h"
#include "hotset/server/web_page.h"

namespace hotset::server {
namespace {

using httplib::Request;
using httplib::Response;
using HandlerResponse = httplib::Server::HandlerResponse;

constexpr const char* kJson = "application/json; charset=utf-8";
// Between two texts of a stream that waits: a comment that keeps proxies from giving it up.
constexpr double kKeepAliveUs = 15e6;
constexpr double kLookUs = 20e3;
// Bodies that are being read, over all connections, in multiples of the largest one.
constexpr size_t kMaxBodiesInFlight = 8;

struct Route {
  std::string_view method;
  std::string_view path;
};
constexpr std::array kRoutes = std::to_array<Route>({
    {"GET", "/"},
    {"GET", "/health"},
    {"GET", "/v1/health"},
    {"GET", "/metrics"},
    {"GET", "/props"},
    {"GET", "/slots"},
    {"GET", "/cache"},
    {"GET", "/v1/models"},
    {"GET", "/models"},
    {"POST", "/v1/chat/completions"},
    {"POST", "/chat/completions"},
    {"POST", "/v1/completions"},
    {"POST", "/completion"},
    {"POST", "/completions"},
    {"POST", "/tokenize"},
    {"POST", "/detokenize"},
    {"POST", "/apply-template"},
});
constexpr std::string_view kModelPrefix = "/v1/models/";

// "GET, POST" of a path; empty: there is no such path.
std::string methods_of(std::string_view path) {
  if (path.starts_with(kModelPrefix)) return "GET";
  std::string methods;
  for (const Route& route : kRoutes) {
    if (route.path == path) methods += (methods.empty() ? "" : ", ") + std::string(route.method);
  }
  return methods;
}

bool is_health(std::string_view path) { return path == "/health" || path == "/v1/health"; }

// "host:port" of an origin, "http://host:port".
std::string_view host_of(std::string_view origin) {
  const size_t at = origin.find("://");
  return at == std::string_view::npos ? origin : origin.substr(at + 3);
}

bool is_length(std::string_view text) {
  return !text.empty() && text.size() <= 18 &&
         text.find_first_not_of("0123456789") == std::string_view::npos;
}

void answer(Response& response, const ApiError& error) {
  response.status = error.status;
  response.body = error_body(error);
  response.headers.erase("Content-Type");
  response.set_header("Content-Type", kJson);
  if (error.status == 503) response.set_header("Retry-After", "1");
}

// The rest of the request is not read.
void answer_and_close(Response& response, const ApiError& error) {
  answer(response, error);
  response.set_header("Connection", "close");
  Connection::current()->close_afterwards();
}

double unix_time_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

struct ApiServer::State {
  explicit State(ServerOptions given)
      : options(std::move(given)), keys(options.api_keys), http(options.limits) {}

  using Endpoint = ApiResult<std::string> (Endpoints::*)(std::string_view) const;
  using Generate = ApiResult<Answer> (Endpoints::*)(std::string_view, const HasLeft&) const;

  void register_all();
  HandlerResponse before(const Request& request, Response& response);
  HandlerResponse check_origin(const Request& request, Response& response);
  HandlerResponse check_body(const Request& request, Response& response) const;
  HandlerResponse check_state(const Request& request, Response& response) const;
  void add_post(const std::string& path, std::function<void(std::string_view, Response&)> work);
  void add_generation(const std::string& path, Generate generate);
  void add_text(const std::string& path, Endpoint endpoint);
  void add_get(const std::string& path, std::function<void(Response&)> work);
  bool read_body(const Request& request, Response& response, const httplib::ContentReader& reader,
                 std::string& body);
  void send(Answer answered, Response& response);
  std::string metrics() const;

  ServerOptions options;
  ApiKeys keys;
  HttpListener http;
  std::unique_ptr<Endpoints> endpoints;
  std::atomic<bool> is_serving = false;
  std::atomic<bool> is_draining = false;
  std::atomic<size_t> body_bytes = 0;
  double start_time_s = unix_time_s();
  mutable std::mutex mutex;  // of the next one
  std::map<int, uint64_t> responses;
};

// --- Before an endpoint

HandlerResponse ApiServer::State::check_origin(const Request& request, Response& response) {
  const std::string origin = request.get_header_value("Origin");
  if (origin.empty()) return HandlerResponse::Unhandled;
  const bool is_own = host_of(origin) == request.get_header_value("Host");
  const bool is_allowed = options.cors_origin == "*" || options.cors_origin == origin;
  if (!is_own && !is_allowed) {
    answer_and_close(response,
                     {.status = 403,
                      .message = fmt::format("Origin: found {}, but pages of other origins may not "
                                             "use this server (--cors-origin)",
                                             printable(origin))});
    return HandlerResponse::Handled;
  }
  if (is_own && options.cors_origin.empty()) return HandlerResponse::Unhandled;
  response.set_header("Access-Control-Allow-Origin", options.cors_origin == "*" ? "*" : origin);
  response.set_header("Vary", "Origin");
  if (request.method != "OPTIONS") return HandlerResponse::Unhandled;
  response.set_header("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
  const std::string headers = request.get_header_value("Access-Control-Request-Headers");
  response.set_header("Access-Control-Allow-Headers", headers.empty() ? "Content-Type" : headers);
  response.set_header("Access-Control-Max-Age", "86400");
  response.status = 204;
  return HandlerResponse::Handled;
}

HandlerResponse ApiServer::State::check_body(const Request& request, Response& response) const {
  const auto refuse = [&](int status, std::string message) {
    answer_and_close(response, {.status = status, .message = std::move(message)});
    return HandlerResponse::Handled;
  };
  const std::string length = request.get_header_value("Content-Length");
  const std::string coding = request.get_header_value("Transfer-Encoding");
  const bool has_length = request.has_header("Content-Length");
  if (request.get_header_value_count("Content-Length") > 1 ||
      request.get_header_value_count("Transfer-Encoding") > 1 || (has_length && !coding.empty())) {
    return refuse(400, "the header says more than once how long the body is");
  }
  if (has_length && !is_length(length)) {
    return refuse(400,
                  fmt::format("Content-Length: found '{}', expected a number", printable(length)));
  }
  if (!coding.empty() && coding != "chunked") {
    return refuse(
        400, fmt::format("Transfer-Encoding: found '{}', expected chunked", printable(coding)));
  }
  const size_t n_bytes = has_length ? std::stoull(length) : 0;
  if (n_bytes > options.limits.max_body_bytes) {
    return refuse(413, fmt::format("the body has {} bytes, expected at most {}", n_bytes,
                                   options.limits.max_body_bytes));
  }
  if (request.method != "POST") {
    if (n_bytes == 0 && coding.empty()) return HandlerResponse::Unhandled;
    return refuse(400,
                  fmt::format("found a body with {}, expected none", printable(request.method)));
  }
  if (!has_length && coding.empty()) return refuse(411, "Content-Length is missing");
  if (request.is_multipart_form_data()) {
    return refuse(415, "Content-Type: found a form, expected application/json");
  }
  return HandlerResponse::Unhandled;
}

HandlerResponse ApiServer::State::check_state(const Request& request, Response& response) const {
  if (is_serving && !is_draining) return HandlerResponse::Unhandled;
  if (is_serving && request.path == "/metrics") return HandlerResponse::Unhandled;
  answer_and_close(response,
                   {.status = 503,
                    .message = is_draining ? "the server is shutting down" : "the model is loading",
                    .code = is_draining ? "shutting_down" : "loading"});
  return HandlerResponse::Handled;
}

HandlerResponse ApiServer::State::before(const Request& request, Response& response) {
  Connection::current()->header_is_read();
  if (check_origin(request, response) == HandlerResponse::Handled) return HandlerResponse::Handled;
  if (!is_health(request.path) && keys.needed() &&
      !keys.accept_headers(request.get_header_value("Authorization"),
                           request.get_header_value("X-Api-Key"))) {
    // A browser that opens the page asks for the key.
    response.set_header(
        "WWW-Authenticate",
        request.path == "/" ? "Basic realm=\"hotset: the API key is the password\"" : "Bearer");
    answer_and_close(response, {.status = 401,
                                .message = "the API key is missing or wrong (Authorization: "
                                           "Bearer KEY)",
                                .code = "invalid_api_key"});
    return HandlerResponse::Handled;
  }
  const std::string methods = methods_of(request.path);
  if (methods.empty()) {
    answer_and_close(response, {.status = 404,
                                .message = fmt::format("found {}, which is no path of this server",
                                                       printable(request.path))});
    return HandlerResponse::Handled;
  }
  const std::string method = request.method == "HEAD" ? "GET" : request.method;
  if (methods.find(method) == std::string::npos) {
    response.set_header("Allow", methods);
    answer_and_close(response, {.status = 405,
                                .message = fmt::format("{}: found {}, expected {}", request.path,
                                                       printable(request.method), methods)});
    return HandlerResponse::Handled;
  }
  if (check_body(request, response) == HandlerResponse::Handled) return HandlerResponse::Handled;
  return check_state(request, response);
}

// --- Endpoints

bool ApiServer::State::read_body(const Request& request, Response& response,
                                 const httplib::ContentReader& reader, std::string& body) {
  const size_t most = options.limits.max_body_bytes;
  size_t n_counted = 0;
  bool is_too_long = false;
  bool is_too_much = false;
  // Counted here and not by the header: a body may be compressed.
  const bool was_read = reader([&](const char* data, size_t n_bytes) {
    is_too_long = body.size() + n_bytes > most;
    n_counted += n_bytes;
    is_too_much = (body_bytes += n_bytes) > kMaxBodiesInFlight * most;
    if (is_too_long || is_too_much) return false;
    body.append(data, n_bytes);
    return true;
  });
  body_bytes -= n_counted;
  if (was_read) return true;
  // httplib may have counted as well.
  if (is_too_long || response.status == 413) {
    answer_and_close(
        response, {.status = 413, .message = fmt::format("the body has more than {} bytes", most)});
  } else if (is_too_much) {
    answer_and_close(response, {.status = 503, .message = "too many long requests at once"});
  } else {
    const bool is_coded = !request.get_header_value("Content-Encoding").empty();
    answer_and_close(response, {.status = is_coded ? 415 : 400,
                                .message = is_coded ? "Content-Encoding: the body cannot be read"
                                                    : "the body ended early, or came too slowly"});
  }
  return false;
}

void ApiServer::State::add_post(const std::string& path,
                                std::function<void(std::string_view, Response&)> work) {
  http.Post(path, [this, work = std::move(work)](const Request& request, Response& response,
                                                 const httplib::ContentReader& reader) {
    std::string body;
    if (!read_body(request, response, reader, body)) return;
    // Objects of JSON allocate where they end as well, and a refusal there would end the process:
    // without room for some copies of the body nothing is begun.
    constexpr int64_t kCopies = 8;
    const Bytes room{(1 << 20) + kCopies * static_cast<int64_t>(body.size())};
    if (const Status there = expect_memory("the request", room); !there) {
      answer_and_close(response, api_error(there.error()));
      return;
    }
    work(body, response);
  });
}

void ApiServer::State::send(Answer answered, Response& response) {
  if (!answered.stream) {
    response.set_content(std::move(answered.body), kJson);
    return;
  }
  response.set_header("Cache-Control", "no-cache");
  response.set_header("X-Accel-Buffering", "no");
  std::shared_ptr<AnswerStream> stream = std::move(answered.stream);
  auto last_us = std::make_shared<double>(steady_clock().now_us());
  const Connection* connection = Connection::current();
  response.set_chunked_content_provider(
      "text/event-stream", [stream, last_us, connection](size_t, httplib::DataSink& sink) {
        std::string text = stream->next(kLookUs);
        const double now_us = steady_clock().now_us();
        if (text.empty()) {
          if (connection->peer_has_left()) return false;
          if (now_us - *last_us < kKeepAliveUs) return true;
          text = ": waiting\n\n";
        }
        *last_us = now_us;
        if (!sink.write(text.data(), text.size())) return false;
        if (stream->done()) sink.done();
        return true;
      });
}

void ApiServer::State::add_generation(const std::string& path, Generate generate) {
  add_post(path, [this, generate](std::string_view body, Response& response) {
    const Connection* connection = Connection::current();
    auto answered =
        (endpoints.get()->*generate)(body, [connection] { return connection->peer_has_left(); });
    if (!answered) return answer(response, answered.error());
    send(*std::move(answered), response);
  });
}

void ApiServer::State::add_text(const std::string& path, Endpoint endpoint) {
  add_post(path, [this, endpoint](std::string_view body, Response& response) {
    auto text = (endpoints.get()->*endpoint)(body);
    if (!text) return answer(response, text.error());
    response.set_content(*std::move(text), kJson);
  });
}

void ApiServer::State::add_get(const std::string& path, std::function<void(Response&)> work) {
  http.Get(path, [work = std::move(work)](const Request&, Response& response) { work(response); });
}

std::string ApiServer::State::metrics() const {
  MetricsInput input{.scheduler = endpoints->model().scheduler->status(),
                     .n_connections = http.n_connections(),
                     .start_time_s = start_time_s,
                     .version = options.version,
                     .model = endpoints->model().name};
  if (CacheReporter* cache = endpoints->model().cache) {
    endpoints->model().scheduler->between_steps([&] { input.cache = cache->totals(); });
  }
  const std::lock_guard lock(mutex);
  input.responses = responses;
  return metrics_text(input);
}

void ApiServer::State::register_all() {
  http.set_pre_routing_handler(
      [this](const Request& request, Response& response) { return before(request, response); });
  http.set_expect_100_continue_handler([this](const Request& request, Response& response) {
    const std::string length = request.get_header_value("Content-Length");
    if (!is_length(length) || std::stoull(length) <= options.limits.max_body_bytes) return 100;
    answer_and_close(response, {.status = 413,
                                .message = fmt::format("the body has {} bytes, expected at most {}",
                                                       length, options.limits.max_body_bytes)});
    return 413;
  });
  http.set_error_handler([](const Request&, Response& response) {
    if (!response.body.empty()) return HandlerResponse::Unhandled;
    // httplib's own: a request that it could not read.
    answer_and_close(
        response, {.status = response.status, .message = httplib::status_message(response.status)});
    return HandlerResponse::Handled;
  });
  http.set_exception_handler([](const Request&, Response& response, std::exception_ptr error) {
    try {
      std::rethrow_exception(std::move(error));
    } catch (const std::bad_alloc&) {
      answer_and_close(response, {.status = 503, .message = "out of memory"});
    } catch (const std::exception& e) {
      log_error("a request failed unexpectedly: {}", e.what());
      answer_and_close(response, {.status = 500, .message = "unexpected failure"});
    }
  });
  http.set_logger([this](const Request& request, const Response& response) {
    log_debug("{} {} {}", printable(request.method), printable(request.path), response.status);
    const std::lock_guard lock(mutex);
    ++responses[response.status];
  });
  for (const char* path : {"/health", "/v1/health"}) {
    add_get(path, [](Response& r) { r.set_content(R"({"status":"ok"})", kJson); });
  }
  add_get("/", [](Response& r) {
    r.set_header("Content-Security-Policy",
                 "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
                 "connect-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'");
    r.set_header("X-Content-Type-Options", "nosniff");
    r.set_content(std::string(web_page()), "text/html; charset=utf-8");
  });
  add_get("/metrics",
          [this](Response& r) { r.set_content(metrics(), "text/plain; version=0.0.4"); });
  add_get("/props", [this](Response& r) { r.set_content(endpoints->props(), kJson); });
  add_get("/slots", [this](Response& r) { r.set_content(endpoints->slots(), kJson); });
  add_get("/cache", [this](Response& r) {
    auto text = endpoints->cache();
    if (!text) return answer(r, text.error());
    r.set_content(*std::move(text), kJson);
  });
  for (const char* path : {"/v1/models", "/models"}) {
    add_get(path, [this](Response& r) { r.set_content(endpoints->models(), kJson); });
  }
  http.Get("/v1/models/(.+)", [this](const Request& request, Response& r) {
    if (request.matches[1].str() == endpoints->model().name) {
      r.set_content(endpoints->model_object(), kJson);
      return;
    }
    answer(r, {.status = 404,
               .message = fmt::format("found no model '{}', expected '{}'",
                                      printable(request.matches[1].str()), endpoints->model().name),
               .code = "model_not_found"});
  });
  for (const char* path : {"/v1/chat/completions", "/chat/completions"}) {
    add_generation(path, &Endpoints::chat);
  }
  add_generation("/v1/completions", &Endpoints::completions);
  for (const char* path : {"/completion", "/completions"}) {
    add_generation(path, &Endpoints::native);
  }
  add_text("/tokenize", &Endpoints::tokenize);
  add_text("/detokenize", &Endpoints::detokenize);
  add_text("/apply-template", &Endpoints::apply_template);
}

// --- ApiServer

ApiServer::ApiServer(ServerOptions options) : state_(std::make_unique<State>(std::move(options))) {
  state_->register_all();
}

ApiServer::~ApiServer() { end(); }

Status ApiServer::listen(const std::string& host, int port) {
  HOTSET_RETURN_IF_ERROR(state_->http.bind(host, port));
  state_->http.start();
  return {};
}

int ApiServer::port() const { return state_->http.port(); }

void ApiServer::serve(ServedModel model) {
  state_->endpoints = std::make_unique<Endpoints>(std::move(model), state_->options);
  state_->is_serving = true;
}

void ApiServer::drain() { state_->is_draining = true; }

void ApiServer::end() { state_->http.end(); }

}  // namespace hotset::server
