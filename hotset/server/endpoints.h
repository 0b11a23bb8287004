// What the endpoints do, apart from the transport: from a request's body to an answer's.
// Thread-safe: any number of threads may answer at once.
#ifndef HOTSET_SERVER_ENDPOINTS_H_
#define HOTSET_SERVER_ENDPOINTS_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "hotset/server/api_error.h"
#include "hotset/server/api_server.h"
#include "hotset/server/generation_job.h"

namespace hotset::server {

// An answer that is written while it is generated. Move-only, one thread.
class AnswerStream {
 public:
  virtual ~AnswerStream() = default;
  // The next text to send, within the time; empty: none yet.
  virtual std::string next(double timeout_us) = 0;
  // Nothing follows.
  virtual bool done() const = 0;
};

// A body, or a stream of one.
struct Answer {
  std::string body = {};
  std::unique_ptr<AnswerStream> stream = {};
};

// Whether the client that waits for an answer has gone.
using HasLeft = std::function<bool()>;

// Who waits for a generation.
struct Caller {
  HasLeft has_left;
  // The body has become tokens, and nothing of it is held any more; what follows takes long.
  std::function<void()> prompt_is_made;
};

class Endpoints {
 public:
  Endpoints(ServedModel model, const ServerOptions& options);

  ApiResult<Answer> chat(std::string body, const Caller& caller) const;
  ApiResult<Answer> completions(std::string body, const Caller& caller) const;
  ApiResult<Answer> native(std::string body, const Caller& caller) const;
  ApiResult<std::string> tokenize(std::string_view body) const;
  ApiResult<std::string> detokenize(std::string_view body) const;
  ApiResult<std::string> apply_template(std::string_view body) const;
  std::string models() const;
  // Errors: 404: no such model.
  ApiResult<std::string> model_object(const std::string& name) const;
  std::string props() const;
  std::string slots() const;
  // Errors: 503: the scheduler has ended.
  ApiResult<std::string> cache() const;

  const ServedModel& model() const { return model_; }

 private:
  // The name that answers have for the model. Errors: 404, where names were given and this is none
  // of them.
  ApiResult<std::string> model_name(const std::string& asked) const;

  ServedModel model_;
  const ServerOptions& options_;
  RequestDefaults defaults_;
};

}  // namespace hotset::server

#endif  // HOTSET_SERVER_ENDPOINTS_H_
