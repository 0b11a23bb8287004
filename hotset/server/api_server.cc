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
#include "hotset/server/allowed_hosts.h"
#include "hotset/server/api_keys.h"
#include "hotset/server/body_budget.h"
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
// Bodies that are held, over all connections, in multiples of the largest one.
constexpr size_t kMaxBodies = 8;
constexpr const char* kTooManyLong = "too many long requests at once; try again later";

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
// What other servers have and clients may ask for.
struct NotOffered {
  std::string_view path;
  std::string_view instead;
};
constexpr std::string_view kUseChat = "use /v1/chat/completions";
constexpr std::string_view kNoEmbeddings =
    "this server generates text only; use a server with an embedding model";
constexpr std::array kNotOffered = std::to_array<NotOffered>({
    {"/v1/responses", kUseChat},
    {"/responses", kUseChat},
    {"/v1/messages", kUseChat},
    {"/api/chat", kUseChat},
    {"/api/generate", "use /v1/completions"},
    {"/infill", "use /v1/completions with the model's own tokens for filling in"},
    {"/v1/embeddings", kNoEmbeddings},
    {"/embeddings", kNoEmbeddings},
    {"/embedding", kNoEmbeddings},
    {"/v1/rerank", kNoEmbeddings},
    {"/rerank", kNoEmbeddings},
});

// Why there is no such path.
std::string no_path(std::string_view path) {
  for (const NotOffered& other : kNotOffered) {
    if (path == other.path || path.starts_with(fmt::format("{}/", other.path))) {
      return fmt::format("{} is not offered: {}", other.path, other.instead);
    }
  }
  return fmt::format("found {}, which is no path of this server", printable(path));
}

constexpr std::string_view kModelPrefix = "/v1/models/";
// The name behind it is matched by std::regex, which takes stack for every character.
constexpr size_t kMaxModelPathBytes = 1024;

// "GET, POST" of a path; empty: there is no such path.
std::string methods_of(std::string_view path) {
  if (path.starts_with(kModelPrefix)) return path.size() <= kMaxModelPathBytes ? "GET" : "";
  std::string methods;
  for (const Route& route : kRoutes) {
    if (route.path == path) methods += (methods.empty() ? "" : ", ") + std::string(route.method);
  }
  return methods;
}

bool is_health(std::string_view path) { return path == "/health" || path == "/v1/health"; }

// "host:port" of an origin, "http://host:port"; empty: it has none.
std::string_view host_of(std::string_view origin) {
  const size_t at = origin.find("://");
  return at == std::string_view::npos ? std::string_view() : origin.substr(at + 3);
}

const RequestHead& current_head() { return Connection::current()->head(); }

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
  Connection::current()->close_afterwards();
}

// What the library says of the connection, as it is.
void set_connection_headers(Response& response) {
  response.headers.erase("Accept-Ranges");
  if (!current_head().closes && !Connection::current()->closes()) return;
  response.headers.erase("Keep-Alive");
  response.headers.erase("Connection");
  response.set_header("Connection", "close");
}

double unix_time_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

struct ApiServer::State {
  explicit State(ServerOptions given)
      : options(std::move(given)),
        keys(options.api_keys),
        hosts(options.allowed_hosts),
        bodies({.max_bytes = kMaxBodies * options.limits.max_body_bytes}),
        http(options.limits) {}

  using Endpoint = ApiResult<std::string> (Endpoints::*)(std::string_view) const;
  using Generate = ApiResult<Answer> (Endpoints::*)(std::string, const Caller&) const;
  using Work = std::function<void(std::string body, BodyShare& share, Response& response)>;

  void register_all();
  HandlerResponse before(const Request& request, Response& response);
  HandlerResponse check_host(Response& response) const;
  HandlerResponse check_origin(Response& response) const;
  HandlerResponse check_body(const Request& request, Response& response) const;
  HandlerResponse check_state(const Request& request, Response& response) const;
  void add_post(const std::string& path, Work work);
  void add_generation(const std::string& path, Generate generate);
  void add_text(const std::string& path, Endpoint endpoint);
  void add_get(const std::string& path, std::function<void(Response&)> work);
  bool read_body(Response& response, const httplib::ContentReader& reader, BodyShare& share,
                 std::string& body) const;
  static void send(Answer answered, Response& response);
  void count(int status);
  std::string metrics() const;

  ServerOptions options;
  ApiKeys keys;
  AllowedHosts hosts;
  BodyBudget bodies;
  std::unique_ptr<Endpoints> endpoints;
  std::atomic<bool> is_serving = false;
  std::atomic<bool> is_draining = false;
  double start_time_s = unix_time_s();
  mutable std::mutex mutex;  // of the next one
  std::map<int, uint64_t> responses;
  HttpListener http;  // last: its threads use all of the above
};

// --- Before an endpoint

HandlerResponse ApiServer::State::check_host(Response& response) const {
  // A page that took this server's place has no key. Who sends no Host is no browser.
  const RequestHead& head = current_head();
  const bool has_none = head.is_http_1_0 && head.authority.empty();
  if (keys.needed() || has_none || hosts.allow(head.authority)) return HandlerResponse::Unhandled;
  answer_and_close(response,
                   {.status = 421,
                    .message = fmt::format("Host: found '{}', expected localhost, an IP address or "
                                           "a name that --allowed-host gives",
                                           printable(head.authority)),
                    .code = "host_not_allowed"});
  return HandlerResponse::Handled;
}

HandlerResponse ApiServer::State::check_origin(Response& response) const {
  const RequestHead& head = current_head();
  const std::string origin(head.field("origin"));
  if (origin.empty()) return HandlerResponse::Unhandled;
  const bool is_own = !head.authority.empty() && host_of(origin) == head.authority;
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
  if (head.method != "OPTIONS") return HandlerResponse::Unhandled;
  response.set_header("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
  const std::string headers(head.field("access-control-request-headers"));
  response.set_header("Access-Control-Allow-Headers", headers.empty() ? "Content-Type" : headers);
  response.set_header("Access-Control-Max-Age", "86400");
  response.status = 204;
  if (head.has_body()) Connection::current()->close_afterwards();
  return HandlerResponse::Handled;
}

HandlerResponse ApiServer::State::check_body(const Request& request, Response& response) const {
  const auto refuse = [&](int status, std::string message) {
    answer_and_close(response, {.status = status, .message = std::move(message)});
    return HandlerResponse::Handled;
  };
  const RequestHead& head = current_head();
  const uint64_t n_bytes = head.content_length.value_or(0);
  if (n_bytes > options.limits.max_body_bytes) {
    return refuse(413, fmt::format("the body has {} bytes, expected at most {}", n_bytes,
                                   options.limits.max_body_bytes));
  }
  if (head.method != "POST") {
    if (!head.has_body()) return HandlerResponse::Unhandled;
    return refuse(400, fmt::format("found a body with {}, expected none", printable(head.method)));
  }
  if (!head.content_length && !head.is_chunked) return refuse(411, "Content-Length is missing");
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
  const RequestHead& head = current_head();
  if (check_host(response) == HandlerResponse::Handled) return HandlerResponse::Handled;
  if (check_origin(response) == HandlerResponse::Handled) return HandlerResponse::Handled;
  if (!is_health(request.path) && keys.needed() &&
      !keys.accept_headers(head.field("authorization"), head.field("x-api-key"))) {
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
    answer_and_close(response, {.status = 404, .message = no_path(request.path)});
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

bool ApiServer::State::read_body(Response& response, const httplib::ContentReader& reader,
                                 BodyShare& share, std::string& body) const {
  const size_t most = options.limits.max_body_bytes;
  const ApiError too_much{.status = 503, .message = kTooManyLong};
  // Before a client that waits for it is told to send the body.
  if (!share.has_room(current_head().content_length.value_or(0))) {
    answer_and_close(response, too_much);
    return false;
  }
  bool is_too_long = false;
  bool is_too_much = false;
  // Counted here and not by the header: a body may be compressed.
  const bool was_read = reader([&](const char* data, size_t n_bytes) {
    is_too_long = body.size() + n_bytes > most;
    is_too_much = !is_too_long && !share.take(body.size() + n_bytes);
    if (is_too_long || is_too_much) return false;
    body.append(data, n_bytes);
    return true;
  });
  if (was_read) return true;
  // httplib may have counted as well.
  if (is_too_long || response.status == 413) {
    answer_and_close(
        response, {.status = 413, .message = fmt::format("the body has more than {} bytes", most)});
  } else if (is_too_much) {
    answer_and_close(response, too_much);
  } else {
    const bool is_coded = !current_head().field("content-encoding").empty();
    answer_and_close(response, {.status = is_coded ? 415 : 400,
                                .message = is_coded ? "Content-Encoding: the body cannot be read"
                                                    : "the body ended early, or came too slowly"});
  }
  return false;
}

void ApiServer::State::add_post(const std::string& path, Work work) {
  http.Post(path, [this, work = std::move(work)](const Request&, Response& response,
                                                 const httplib::ContentReader& reader) {
    BodyShare share(bodies);
    std::string body;
    if (!read_body(response, reader, share, body)) return;
    const Connection* connection = Connection::current();
    if (!share.wait_for_turn([connection] { return connection->peer_has_left(); })) {
      return answer_and_close(response, {.status = 503, .message = kTooManyLong});
    }
    // Objects of JSON allocate where they end as well, and a refusal there would end the process:
    // without room for some copies of the body nothing is begun.
    constexpr int64_t kCopies = 8;
    const Bytes room{(1 << 20) + kCopies * static_cast<int64_t>(body.size())};
    if (const Status there = expect_memory("the request", room); !there) {
      return answer_and_close(response, api_error(there.error()));
    }
    work(std::move(body), share, response);
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
  const auto write_next = [stream, last_us, connection](size_t, httplib::DataSink& sink) {
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
  };
  constexpr const char* kEvents = "text/event-stream";
  if (connection->head().is_http_1_0) {
    response.set_content_provider(kEvents, write_next);  // its end is that of the connection
  } else {
    response.set_chunked_content_provider(kEvents, write_next);
  }
}

void ApiServer::State::add_generation(const std::string& path, Generate generate) {
  add_post(path, [this, generate](std::string body, BodyShare& share, Response& response) {
    const Connection* connection = Connection::current();
    const Caller caller{.has_left = [connection] { return connection->peer_has_left(); },
                        .prompt_is_made = [&share] { share.give_back(); }};
    auto answered = (endpoints.get()->*generate)(std::move(body), caller);
    if (!answered) return answer(response, answered.error());
    send(*std::move(answered), response);
  });
}

void ApiServer::State::add_text(const std::string& path, Endpoint endpoint) {
  add_post(path, [this, endpoint](const std::string& body, BodyShare&, Response& response) {
    auto text = (endpoints.get()->*endpoint)(body);
    if (!text) return answer(response, text.error());
    response.set_content(*std::move(text), kJson);
  });
}

void ApiServer::State::add_get(const std::string& path, std::function<void(Response&)> work) {
  http.Get(path, [work = std::move(work)](const Request&, Response& response) { work(response); });
}

void ApiServer::State::count(int status) {
  const std::lock_guard lock(mutex);
  ++responses[status];
}

std::string ApiServer::State::metrics() const {
  MetricsInput input{.scheduler = endpoints->model().scheduler->status(),
                     .n_connections = http.n_connections(),
                     .start_time_s = start_time_s,
                     .version = options.version,
                     .model = endpoints->model().name};
  if (report::CacheReporter* cache = endpoints->model().cache) {
    endpoints->model().scheduler->between_steps([&] { input.cache = cache->totals(); });
  }
  const std::lock_guard lock(mutex);
  input.responses = responses;
  return metrics_text(input);
}

void ApiServer::State::register_all() {
  http.set_pre_routing_handler(
      [this](const Request& request, Response& response) { return before(request, response); });
  http.set_post_routing_handler(
      [](const Request&, Response& response) { set_connection_headers(response); });
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
    count(response.status);
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
    auto text = endpoints->model_object(request.matches[1].str());
    if (!text) return answer(r, text.error());
    r.set_content(*std::move(text), kJson);
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
  state_->http.start([this](int status) { state_->count(status); });
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
