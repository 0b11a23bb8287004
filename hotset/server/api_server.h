// The endpoints: OpenAI's API and what clients of ggml servers expect, over a scheduler.
//
// It can listen before there is a model, and answers 503 until serve() is called.
// Thread-safe as stated.
#ifndef HOTSET_SERVER_API_SERVER_H_
#define HOTSET_SERVER_API_SERVER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/engine/experts/cache_options.h"
#include "hotset/report/cache_view.h"
#include "hotset/server/api_requests.h"
#include "hotset/server/http_limits.h"
#include "hotset/server/scheduler.h"
#include "hotset/text/chat_template.h"
#include "hotset/text/tokenizer.h"

namespace hotset::server {

struct ServerOptions {
  std::string version = {};
  HttpLimits limits = {};
  std::vector<std::string> api_keys = {};  // any of them will do; empty: none is needed
  std::string cors_origin = {};            // "*" or one origin; empty: no page of another origin
  // Names that requests may be for beside localhost and IP addresses (allowed_hosts.h). With a key
  // all may be.
  std::vector<std::string> allowed_hosts = {};
  RequestDefaults defaults = {};
  std::string chat_variables = {};  // JSON object: variables of the chat template
};

// What is served. References must outlive the server.
struct ServedModel {
  Scheduler* scheduler = nullptr;
  const text::Tokenizer* tokenizer = nullptr;
  const text::ChatTemplate* chat_template = nullptr;
  report::CacheReporter* cache = nullptr;
  // How the cache decides, for whoever replays its routing; none: there is no cache.
  std::optional<engine::CacheOptions> cache_options = {};
  std::string name;  // as in "model" of answers
  // Whether `name` was given, by whoever serves it: then a request must ask for it, or for one of
  // `more_names`, or for none.
  bool has_aliases = false;
  std::vector<std::string> more_names = {};
  std::string path = {};
  std::string architecture = {};
  int64_t n_bytes = 0;
  int64_t n_ctx_train = 0;
  int64_t n_embd = 0;

  std::vector<std::string> names() const {
    std::vector<std::string> all = {name};
    all.insert(all.end(), more_names.begin(), more_names.end());
    return all;
  }
};

class ApiServer {
 public:
  explicit ApiServer(ServerOptions options);
  ~ApiServer();
  ApiServer(const ApiServer&) = delete;
  ApiServer& operator=(const ApiServer&) = delete;

  // Takes the port and begins to answer; port 0: any. Errors: kIo, the address cannot be had;
  // kInvalidArgument, it is none.
  Status listen(const std::string& host, int port);
  int port() const;
  // Requires: called once.
  void serve(ServedModel model);
  // Everything but /health and /metrics is answered 503 from now on; what runs goes on.
  void drain();
  // Ends all connections. No thread of this server runs afterwards.
  void end();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace hotset::server

#endif  // HOTSET_SERVER_API_SERVER_H_
