// One request to generate, from its checked body to its answer: the prompts as tokens, the
// scheduler's requests, and what comes back as one stream of events. Ends what still runs when it
// is destroyed. Thread-compatible: the thread that answers the client.
#ifndef HOTSET_SERVER_GENERATION_JOB_H_
#define HOTSET_SERVER_GENERATION_JOB_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hotset/server/api_error.h"
#include "hotset/server/api_requests.h"
#include "hotset/server/reply.h"
#include "hotset/server/scheduler.h"
#include "hotset/text/chat_template.h"
#include "hotset/text/tokenizer.h"

namespace hotset::server {

struct JobPrompt {
  std::vector<int32_t> ids = {};
  std::string field = "prompt";   // of the request, for errors
  std::optional<Echo> echo = {};  // in front of its answers
};

struct JobOptions {
  std::optional<text::ReplyFormat> format = {};  // of a chat's replies
  bool keeps_tokens = false;                     // events have tokens
  bool one_call = false;                         // replies end behind their first tool call
};

class GenerationJob {
 public:
  // Requires: scheduler and tokenizer outlive this.
  // Errors: a prompt longer than the context: 400 with both numbers and its field; a full queue:
  // 503; options of the sampler, tokens that are none: 400.
  static ApiResult<std::unique_ptr<GenerationJob>> start(Scheduler& scheduler,
                                                         const text::Tokenizer& tokenizer,
                                                         std::vector<JobPrompt> prompts,
                                                         const GenerationSettings& settings,
                                                         JobOptions options);
  ~GenerationJob();
  GenerationJob(const GenerationJob&) = delete;
  GenerationJob& operator=(const GenerationJob&) = delete;

  int32_t n_choices() const { return n_choices_; }  // over all prompts
  bool done() const { return n_ended_ == n_choices_; }
  // The next event; nothing if none comes within the time.
  std::optional<ReplyEvent> take(double timeout_us);
  void cancel();

 private:
  GenerationJob(Scheduler& scheduler, int32_t n_choices)
      : scheduler_(scheduler), n_choices_(n_choices) {}

  Scheduler& scheduler_;
  std::shared_ptr<ReplyChannel> channel_ = std::make_shared<ReplyChannel>();
  std::vector<RequestId> ids_;
  int32_t n_choices_;
  int32_t n_ended_ = 0;
};

// A prompt as tokens, with its text in front of the answers if `echoes`: a text in which control
// tokens count as such, with the BOS that texts of this model begin with, once. Errors: 400.
ApiResult<JobPrompt> job_prompt(const text::Tokenizer& tokenizer, const Prompt& prompt,
                                bool echoes);

// Errors: 400: a role that neither OpenAI's API nor the template knows.
ApiResult<void> check_roles(const text::ChatTemplate& chat_template, const ChatRequest& request);

// Whether a prompt could fit into a context of `n_ctx` tokens, by its length alone: one that is far
// too long costs no tokenizing. Errors: 400.
ApiResult<void> check_prompt_length(const text::Tokenizer& tokenizer, const Prompt& prompt,
                                    int32_t n_ctx);

// Whether a chat could fit into a context of `n_ctx` tokens, by the length of its texts alone:
// nothing is rendered, so that a chat that is far too long keeps nobody waiting. Errors: 400.
ApiResult<void> check_chat_length(const text::Tokenizer& tokenizer, const ChatRequest& request,
                                  int32_t n_ctx);

// What a chat's messages become. Errors: 400: the template refuses them; 503: it takes too much.
ApiResult<std::string> render_chat(const text::ChatTemplate& chat_template,
                                   const ChatRequest& request, const std::string& variables);

}  // namespace hotset::server

#endif  // HOTSET_SERVER_GENERATION_JOB_H_
