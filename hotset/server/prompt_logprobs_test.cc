// The scheduler gives the log probabilities of a prompt's own tokens.
#include <gtest/gtest.h>

#include <cmath>

#include "hotset/server/scheduler.h"
#include "hotset/server/server_testing.h"

namespace hotset::server {
namespace {

using test::ask;
using test::continuation;
using test::FakeModel;
using test::greedy;
using test::Ids;
using test::KeepingSink;
using test::settled;
using test::start;
using test::text_of;

// What the model thinks of a token of a prompt.
float logprob_in(const Ids& prompt, size_t at) {
  const std::vector<float> logits = test::logits_behind(std::span(prompt).first(at));
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  return static_cast<float>(static_cast<double>(logits[prompt[at]]) - std::log(sum));
}

void expect_logprobs(const Ids& prompt, const std::vector<GeneratedToken>& tokens) {
  ASSERT_EQ(tokens.size(), prompt.size());
  EXPECT_EQ(tokens[0].id, prompt[0]);
  EXPECT_TRUE(tokens[0].top.empty());
  for (size_t i = 1; i < prompt.size(); ++i) {
    EXPECT_EQ(tokens[i].id, prompt[i]);
    EXPECT_NEAR(tokens[i].logprob, logprob_in(prompt, i), 1e-5) << i;
    ASSERT_EQ(tokens[i].top.size(), 2);
    EXPECT_EQ(tokens[i].top[0].id, engine::argmax(test::logits_behind(std::span(prompt).first(i))));
  }
}

GenerationRequest scored(Ids prompt, int32_t max_tokens,
                         std::vector<std::shared_ptr<ChoiceSink>> sinks) {
  GenerationRequest request = greedy(std::move(prompt), max_tokens, std::move(sinks));
  request.n_logprobs = 2;
  request.prompt_logprobs = true;
  return request;
}

TEST(Scheduler, GivesThePromptsLogprobsAlsoOfWhatItHasComputedBefore) {
  FakeModel model(400, 64);
  std::vector<std::shared_ptr<KeepingSink>> sinks;
  Ids prompt = text_of(100);
  {
    const auto scheduler = start(model, {.n_parallel = 3, .saved_prompts = mib(1)});
    ask(*scheduler, prompt, 5);
    model.batches.clear();
    // The choices share one computation.
    for (const int32_t max_tokens : {0, 4}) {
      for (int i = 0; i < 2; ++i) sinks.push_back(std::make_shared<KeepingSink>());
      ASSERT_TRUE(
          scheduler->submit(scored(prompt, max_tokens, {sinks[sinks.size() - 2], sinks.back()})));
      EXPECT_EQ(sinks.back()->wait().n_generated, max_tokens);
      const ChoiceResult first = sinks[sinks.size() - 2]->wait();
      EXPECT_EQ(first.n_reused, 0);
      EXPECT_EQ(sinks.back()->ids(), continuation(prompt, max_tokens));
    }
  }
  for (const auto& sink : sinks) expect_logprobs(prompt, sink->prompt());
  int32_t n_rows = 0;
  for (const FakeModel::Batch& batch : model.batches) {
    n_rows += batch.n_outputs;
    // Not the logits of all of a prompt at once.
    EXPECT_LE(batch.n_outputs, kPromptRows);
  }
  EXPECT_EQ(n_rows, 2 * 100 + 2 * 3);
}

TEST(Scheduler, GivesThePromptsLogprobsWhenItHadToWaitAgain) {
  FakeModel model(120, 64);
  std::vector<std::shared_ptr<KeepingSink>> sinks;
  std::vector<Ids> prompts;
  SchedulerStatus status;
  {
    const auto scheduler = start(model, {.n_parallel = 3});
    for (int32_t i = 0; i < 3; ++i) {
      sinks.push_back(std::make_shared<KeepingSink>());
      prompts.push_back(text_of(10 + 7 * i, 3 * i));
      ASSERT_TRUE(scheduler->submit(scored(prompts.back(), 60, {sinks.back()})));
    }
    for (const auto& sink : sinks) EXPECT_EQ(sink->wait().n_generated, 60);
    status = settled(*scheduler);
  }
  EXPECT_GT(status.n_preempted, 0);
  for (size_t i = 0; i < sinks.size(); ++i) {
    expect_logprobs(prompts[i], sinks[i]->prompt());
    EXPECT_EQ(sinks[i]->ids(), continuation(prompts[i], 60));
  }
}

}  // namespace
}  // namespace hotset::server
