#include "hotset/server/scheduler.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <new>
#include <thread>
#include <utility>

#include "hotset/base/random.h"
#include "hotset/server/server_testing.h"

namespace hotset::server {
namespace {

using test::Answer;
using test::ask;
using test::continuation;
using test::FakeModel;
using test::Gate;
using test::greedy;
using test::Ids;
using test::KeepingSink;
using test::settled;
using test::start;
using test::text_of;

void append(Ids& ids, const Ids& more) { ids.insert(ids.end(), more.begin(), more.end()); }

TEST(Scheduler, AnswersOneRequest) {
  FakeModel model(100, 16);
  const auto scheduler = start(model, {.n_parallel = 2});
  const Answer answer = ask(*scheduler, text_of(20), 7);
  EXPECT_EQ(answer.ids, continuation(text_of(20), 7));
  EXPECT_EQ(answer.result.reason, StopReason::kLength);
  EXPECT_EQ(answer.result.n_prompt, 20);
  EXPECT_EQ(answer.result.n_reused, 0);
  EXPECT_EQ(answer.result.n_generated, 7);
  // 20 tokens of the prompt and 6 that were generated, each with two experts.
  EXPECT_DOUBLE_EQ(answer.result.experts.selected, 52);
  EXPECT_DOUBLE_EQ(answer.result.experts.hits, 26);
}

TEST(Scheduler, ARequestMayUseWhatIsAllowedToOne) {
  FakeModel model(200, 16);
  model.most_of_one = 50;
  const auto scheduler = start(model, {.n_parallel = 2});
  EXPECT_EQ(scheduler->n_ctx(), 50);
  const Answer answer = ask(*scheduler, text_of(40), 100);
  EXPECT_EQ(answer.result.reason, StopReason::kContext);
  EXPECT_EQ(answer.result.n_prompt + answer.result.n_generated, 51);  // the last is not computed
  EXPECT_EQ(scheduler->status().n_ctx, 200);
  const auto refused = scheduler->submit(greedy(text_of(51), 1, {std::make_shared<KeepingSink>()}));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
}

TEST(Scheduler, AnswersAsAloneWhateverRunsBeside) {
  constexpr uint64_t kSeed = 7;
  for (const int32_t n_ctx : {90, 200, 2000}) {
    FakeModel model(n_ctx, 8);
    const auto scheduler = start(
        model, {.n_parallel = 4, .max_queued = 100, .saved_prompts = mib(n_ctx == 200 ? 1 : 0)});
    std::vector<std::thread> clients;
    for (uint64_t c = 0; c < 6; ++c) {
      clients.emplace_back([&, c] {
        Random random(kSeed + c);
        for (int i = 0; i < 15; ++i) {
          const auto n_prompt = static_cast<int32_t>(1 + random.below(50));
          const auto n = static_cast<int32_t>(1 + random.below(30));
          // Few beginnings, so that prefixes are shared.
          const Ids prompt = text_of(n_prompt, static_cast<int32_t>(random.below(3)));
          const Answer answer = ask(*scheduler, prompt, n);
          EXPECT_EQ(answer.ids, continuation(prompt, n)) << n_prompt << " " << n;
          EXPECT_EQ(answer.result.reason, StopReason::kLength);
        }
      });
    }
    for (std::thread& client : clients) client.join();
    const SchedulerStatus status = settled(*scheduler);
    EXPECT_EQ(status.n_requests, 90);
    EXPECT_GT(status.n_prompt_reused, 0);
  }
}

TEST(Scheduler, DecodesSequencesTogetherAndPromptsInChunksBetween) {
  FakeModel model(400, 16);
  Gate gate;
  model.on_decode = [&](auto) -> Status {
    gate.pass();
    return {};
  };
  std::vector<std::shared_ptr<KeepingSink>> sinks;
  {
    const auto scheduler = start(model, {.n_parallel = 3, .prefill_chunk = 10});
    for (int32_t i = 0; i < 3; ++i) {
      sinks.push_back(std::make_shared<KeepingSink>());
      // The first one generates while the others' prompts are computed.
      const int32_t n_prompt = i == 0 ? 2 : 50;
      ASSERT_TRUE(scheduler->submit(greedy(text_of(n_prompt, 7 * i), 60, {sinks.back()})));
      if (i == 0) gate.wait_until_somebody_waits();
    }
    gate.open();
    for (const auto& sink : sinks) EXPECT_EQ(sink->wait().n_generated, 60);
  }
  int32_t n_largest = 0;
  int32_t n_together = 0;
  bool was_prefill = false;
  for (size_t i = 1; i < model.batches.size(); ++i) {
    const auto [n_tokens, n_outputs] = model.batches[i];
    n_largest = std::max(n_largest, n_tokens);
    n_together += n_tokens == 3 && n_outputs == 3 ? 1 : 0;
    const bool is_prefill = n_outputs < n_tokens;
    EXPECT_FALSE(is_prefill && was_prefill) << "two chunks without a decode step between, at " << i;
    was_prefill = is_prefill;
  }
  EXPECT_EQ(n_largest, 10);
  EXPECT_GE(n_together, 40);
}

TEST(Scheduler, GoesOnWhereAnEarlierRequestEnded) {
  FakeModel model(200, 16);
  const auto scheduler = start(model, {.n_parallel = 2});
  Ids text = text_of(30);
  append(text, ask(*scheduler, text, 10).ids);
  const auto n_before = settled(*scheduler).n_prompt_computed;
  append(text, text_of(5, 40));
  const Answer answer = ask(*scheduler, text, 4);
  EXPECT_EQ(answer.ids, continuation(text, 4));
  // The last generated token was never computed.
  EXPECT_EQ(answer.result.n_reused, 39);
  EXPECT_EQ(settled(*scheduler).n_prompt_computed - n_before, 6);
  // The same prompt again: one token must be computed.
  EXPECT_EQ(ask(*scheduler, text, 4).result.n_reused, 44);
}

TEST(Scheduler, ReusesNothingIfAskedNotTo) {
  FakeModel model(200, 16);
  const auto scheduler = start(model, {.n_parallel = 1});
  ask(*scheduler, text_of(30), 3);
  auto sink = std::make_shared<KeepingSink>();
  GenerationRequest request = greedy(text_of(30), 3, {sink});
  request.reuse_prompt = false;
  ASSERT_TRUE(scheduler->submit(std::move(request)));
  EXPECT_EQ(sink->wait().n_reused, 0);
  EXPECT_EQ(sink->ids(), continuation(text_of(30), 3));
}

TEST(Scheduler, TakesThePrefixOfARunningRequest) {
  FakeModel model(400, 16);
  Gate gate;
  std::atomic<int> n_steps = 0;
  model.on_decode = [&](auto) -> Status {
    if (++n_steps == 10) gate.pass();
    return {};
  };
  const auto scheduler = start(model, {.n_parallel = 2});
  auto running = std::make_shared<KeepingSink>();
  ASSERT_TRUE(scheduler->submit(greedy(text_of(40), 50, {running})));
  gate.wait_until_somebody_waits();
  Ids other = text_of(35);
  append(other, text_of(5, 3));
  auto second = std::make_shared<KeepingSink>();
  ASSERT_TRUE(scheduler->submit(greedy(other, 20, {second})));
  gate.open();
  EXPECT_EQ(second->wait().n_reused, 35);
  EXPECT_EQ(second->ids(), continuation(other, 20));
  running->wait();
  EXPECT_EQ(running->ids(), continuation(text_of(40), 50));
}

TEST(Scheduler, ChoicesShareTheWorkOfTheirPrompt) {
  // With fewer slots than choices some wait for one, and still compute nothing again.
  for (const int32_t n_parallel : {1, 2, 5}) {
    FakeModel model(400, 16);
    const auto scheduler = start(model, {.n_parallel = n_parallel});
    std::vector<std::shared_ptr<KeepingSink>> sinks;
    GenerationRequest request = greedy(text_of(50), 12, {});
    request.sampler = {.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0, .seed = 5};
    for (int i = 0; i < 5; ++i) {
      sinks.push_back(std::make_shared<KeepingSink>());
      request.sinks.push_back(sinks.back());
    }
    ASSERT_TRUE(scheduler->submit(request));
    std::vector<Ids> answers;
    for (const auto& sink : sinks) {
      const ChoiceResult result = sink->wait();
      EXPECT_EQ(result.reason, StopReason::kLength);
      EXPECT_EQ(result.n_reused, sink == sinks.front() ? 0 : 50) << n_parallel;
      answers.push_back(sink->ids());
    }
    EXPECT_EQ(settled(*scheduler).n_prompt_computed, 50) << n_parallel;
    // Each has a seed of its own, and the answer that a request with this seed alone gets.
    for (size_t i = 0; i < answers.size(); ++i) {
      GenerationRequest alone = request;
      alone.sampler.seed += i;
      auto sink = std::make_shared<KeepingSink>();
      alone.sinks = {sink};
      ASSERT_TRUE(scheduler->submit(alone));
      sink->wait();
      EXPECT_EQ(answers[i], sink->ids()) << n_parallel << " " << i;
    }
    EXPECT_NE(answers[0], answers[1]);
  }
}

TEST(Scheduler, ComputesAgainWhatTheModelCannotShare) {
  FakeModel model(400, 16);
  model.forgets_all = true;
  const auto scheduler = start(model, {.n_parallel = 3});
  std::vector<std::shared_ptr<KeepingSink>> sinks;
  for (int i = 0; i < 3; ++i) sinks.push_back(std::make_shared<KeepingSink>());
  ASSERT_TRUE(scheduler->submit(greedy(text_of(50), 12, {sinks.begin(), sinks.end()})));
  for (const auto& sink : sinks) {
    EXPECT_EQ(sink->wait().n_reused, 0);
    EXPECT_EQ(sink->ids(), continuation(text_of(50), 12));
  }
  EXPECT_EQ(ask(*scheduler, text_of(40), 5).ids, continuation(text_of(40), 5));
}

TEST(Scheduler, TakesPromptsFromHostMemory) {
  FakeModel model(300, 16);
  const auto scheduler = start(model, {.n_parallel = 1, .saved_prompts = mib(1)});
  // Two conversations in one slot.
  Ids first = text_of(60);
  Ids second = text_of(60, 25);
  for (int turn = 0; turn < 3; ++turn) {
    for (Ids* text : {&first, &second}) {
      const Answer answer = ask(*scheduler, *text, 10);
      EXPECT_EQ(answer.ids, continuation(*text, 10));
      if (turn > 0) {
        EXPECT_EQ(answer.result.n_reused, static_cast<int32_t>(text->size()) - 6);
      }
      append(*text, answer.ids);
      append(*text, text_of(5, turn));
    }
  }
  EXPECT_EQ(settled(*scheduler).n_restored, 4);
  // A state that cannot be restored costs a computation, no more.
  model.refuses_states = true;
  const Answer answer = ask(*scheduler, first, 10);
  EXPECT_EQ(answer.ids, continuation(first, 10));
  EXPECT_EQ(answer.result.n_reused, 0);
}

TEST(Scheduler, SavedPromptsSurviveEviction) {
  // Positions run out, and what is evicted comes back.
  FakeModel model(150, 16);
  const auto scheduler = start(model, {.n_parallel = 3, .saved_prompts = mib(1)});
  for (int round = 0; round < 3; ++round) {
    for (int32_t i = 0; i < 4; ++i) {
      const Answer answer = ask(*scheduler, text_of(60, 10 * i), 8);
      EXPECT_EQ(answer.ids, continuation(text_of(60, 10 * i), 8));
      EXPECT_EQ(answer.result.n_reused, round == 0 ? 0 : 59) << round << " " << i;
    }
  }
}

TEST(Scheduler, RefusesWhatTheQueueDoesNotHold) {
  FakeModel model(100, 16);
  Gate gate;
  model.on_decode = [&](auto) -> Status {
    gate.pass();
    return {};
  };
  const auto scheduler = start(model, {.n_parallel = 1, .max_queued = 2});
  std::vector<std::shared_ptr<KeepingSink>> sinks;
  for (int i = 0; i < 3; ++i) {
    sinks.push_back(std::make_shared<KeepingSink>());
    ASSERT_TRUE(scheduler->submit(greedy(text_of(5), 2, {sinks.back()})));
  }
  gate.wait_until_somebody_waits();
  EXPECT_EQ(scheduler->status().n_queued + 1, 3);
  const auto refused = scheduler->submit(greedy(text_of(5), 2, {std::make_shared<KeepingSink>()}));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
  gate.open();
  for (const auto& sink : sinks) sink->wait();
  EXPECT_EQ(ask(*scheduler, text_of(5), 2).result.reason, StopReason::kLength);
  EXPECT_EQ(settled(*scheduler).n_refused, 1);
}

TEST(Scheduler, ChecksRequests) {
  FakeModel model(10, 16);
  const auto scheduler = start(model, {.n_parallel = 1});
  const auto why = [&](GenerationRequest request) {
    request.sinks = {std::make_shared<KeepingSink>()};
    const auto id = scheduler->submit(std::move(request));
    EXPECT_FALSE(id);
    return id ? "" : id.error().message;
  };
  EXPECT_EQ(why({}), "prompt: found no token, expected at least 1");
  EXPECT_EQ(why({.prompt = text_of(11)}), "prompt: found 11 tokens, but the context holds 10");
  EXPECT_EQ(why({.prompt = {1, 50}}), "prompt: found token 50, expected 0 to 49");
  EXPECT_NE(why({.prompt = {1}, .sampler = {.top_p = 2}}), "");
  for (const SchedulerOptions& options :
       {SchedulerOptions{.n_parallel = 0}, SchedulerOptions{.n_parallel = 65},
        SchedulerOptions{.max_queued = -1}, SchedulerOptions{.prefill_chunk = -1}}) {
    EXPECT_FALSE(Scheduler::create(model, options));
  }
}

TEST(Scheduler, CancelledRequestsEndAtTheNextStep) {
  FakeModel model(1000, 16);
  std::atomic<int> n_steps = 0;
  Gate gate;
  model.on_decode = [&](auto) -> Status {
    if (++n_steps == 5) gate.pass();
    return {};
  };
  const auto scheduler = start(model, {.n_parallel = 1});
  std::vector<std::shared_ptr<KeepingSink>> sinks;
  std::vector<RequestId> ids;
  for (int i = 0; i < 3; ++i) {
    sinks.push_back(std::make_shared<KeepingSink>());
    ids.push_back(scheduler->submit(greedy(text_of(5, i), 100, {sinks.back()})).value());
  }
  gate.wait_until_somebody_waits();
  scheduler->cancel(ids[0]);  // runs
  scheduler->cancel(ids[1]);  // waits
  scheduler->cancel(99);      // never was
  gate.open();
  EXPECT_EQ(sinks[0]->wait().reason, StopReason::kCancelled);
  EXPECT_EQ(sinks[0]->ids().size(), 5);  // the step that ran had begun before
  EXPECT_EQ(sinks[1]->wait().reason, StopReason::kCancelled);
  EXPECT_EQ(sinks[2]->wait().reason, StopReason::kLength);
  EXPECT_EQ(sinks[2]->ids(), continuation(text_of(5, 2), 100));
}

TEST(Scheduler, CancelEndsAllChoices) {
  FakeModel model(1000, 4);
  Gate gate;
  model.on_decode = [&](auto) -> Status {
    gate.pass();
    return {};
  };
  const auto scheduler = start(model, {.n_parallel = 2});
  std::vector<std::shared_ptr<KeepingSink>> sinks = {std::make_shared<KeepingSink>(),
                                                     std::make_shared<KeepingSink>(),
                                                     std::make_shared<KeepingSink>()};
  const auto id = scheduler->submit(greedy(text_of(40), 10, {sinks.begin(), sinks.end()}));
  gate.wait_until_somebody_waits();  // in the prompt, for which the others wait
  scheduler->cancel(*id);
  gate.open();
  for (const auto& sink : sinks) EXPECT_EQ(sink->wait().reason, StopReason::kCancelled);
  EXPECT_TRUE(scheduler->wait_until_idle(1e9));
}

TEST(Scheduler, YoungestWaitsAgainWhenPositionsRunOut) {
  FakeModel model(120, 16);
  const auto scheduler = start(model, {.n_parallel = 3});
  std::vector<std::shared_ptr<KeepingSink>> sinks;
  for (int32_t i = 0; i < 3; ++i) {
    sinks.push_back(std::make_shared<KeepingSink>());
    ASSERT_TRUE(scheduler->submit(greedy(text_of(5, 10 * i), 100, {sinks.back()})));
  }
  for (int32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(sinks[i]->wait().reason, StopReason::kLength);
    EXPECT_EQ(sinks[i]->ids(), continuation(text_of(5, 10 * i), 100));
  }
  EXPECT_GT(settled(*scheduler).n_preempted, 0);
}

TEST(Scheduler, EndsWhereTheContextEnds) {
  FakeModel model(50, 16);
  const auto scheduler = start(model, {.n_parallel = 2});
  for (const int32_t n_prompt : {10, 49, 50}) {
    const Answer answer = ask(*scheduler, text_of(n_prompt), -1);
    EXPECT_EQ(answer.result.reason, StopReason::kContext);
    // The last token needs no position: nobody asks what follows it.
    EXPECT_EQ(answer.ids, continuation(text_of(n_prompt), 51 - n_prompt));
  }
}

TEST(Scheduler, StopsAtEndTokensAndWhenTheSinkHasEnough) {
  FakeModel model(200, 16);
  const Ids expected = continuation(text_of(9), 30);
  const int32_t end = expected[12];
  const auto n_before_end = std::ranges::find(expected, end) - expected.begin();
  const auto scheduler = start(model, {.n_parallel = 1, .end_ids = {end}});
  const Answer answer = ask(*scheduler, text_of(9), 30);
  EXPECT_EQ(answer.result.reason, StopReason::kEnd);
  EXPECT_EQ(answer.ids, Ids(expected.begin(), expected.begin() + n_before_end));
  auto sink = std::make_shared<KeepingSink>(25);
  GenerationRequest request = greedy(text_of(9), 30, {sink});
  request.ignore_end = true;
  ASSERT_TRUE(scheduler->submit(request));
  EXPECT_EQ(sink->wait().reason, StopReason::kStop);
  EXPECT_EQ(sink->ids(), Ids(expected.begin(), expected.begin() + 25));
}

TEST(Scheduler, ComputesThePromptAloneForNoTokens) {
  FakeModel model(100, 16);
  const auto scheduler = start(model, {.n_parallel = 1});
  const Answer answer = ask(*scheduler, text_of(20), 0);
  EXPECT_EQ(answer.result.reason, StopReason::kLength);
  EXPECT_TRUE(answer.ids.empty());
  EXPECT_EQ(ask(*scheduler, text_of(20), 1).result.n_reused, 19);
}

TEST(Scheduler, ModelErrorsEndOnlyWhatWasInTheBatch) {
  FakeModel model(100, 16);
  std::atomic<bool> fails = true;
  model.on_decode = [&](auto) -> Status {
    if (fails) return make_error(ErrorCode::kDevice, "the device vanished");
    return {};
  };
  const auto scheduler = start(model, {.n_parallel = 1});
  auto failed = std::make_shared<KeepingSink>();
  auto sibling = std::make_shared<KeepingSink>();
  ASSERT_TRUE(scheduler->submit(greedy(text_of(9), 3, {failed, sibling})));
  for (const auto& sink : {failed, sibling}) {
    const ChoiceResult result = sink->wait();
    EXPECT_EQ(result.reason, StopReason::kError);
    EXPECT_EQ(result.error, "the device vanished");
  }
  fails = false;
  EXPECT_EQ(ask(*scheduler, text_of(9), 3).ids, continuation(text_of(9), 3));
}

// Whether it is returned or thrown: what runs ends with an error of its own kind, and the thread
// goes on.
TEST(Scheduler, RefusedMemoryEndsRepliesAndNothingElse) {
  FakeModel model(100, 16);
  std::atomic<int> kind = 0;
  model.on_decode = [&](auto) -> Status {
    if (kind == 1) return make_error(ErrorCode::kOutOfMemory, "refused");
    if (kind == 2) throw std::bad_alloc();
    return {};
  };
  const auto scheduler = start(model, {.n_parallel = 2});
  for (const int each : {1, 2}) {
    kind = each;
    const ChoiceResult result = ask(*scheduler, text_of(9), 3).result;
    EXPECT_EQ(result.reason, StopReason::kError) << each;
    EXPECT_TRUE(result.is_out_of_memory) << each;
    kind = 0;
    EXPECT_EQ(ask(*scheduler, text_of(9), 3).ids, continuation(text_of(9), 3)) << each;
  }
}

TEST(Scheduler, SequencesThatFailLeaveTheOthersAlone) {
  FakeModel model(200, 16);
  Gate gate;
  // That of the second slot fails in the step in which both decode.
  model.on_decode = [&](std::span<const engine::BatchToken> batch) -> Status {
    gate.pass();
    const bool is_there = std::ranges::contains(batch, 1, &engine::BatchToken::sequence);
    model.faults.clear();
    if (is_there && batch.size() == 2) model.faults.push_back({1, "NaN in layer 3"});
    return {};
  };
  const auto scheduler = start(model, {.n_parallel = 2});
  auto good = std::make_shared<KeepingSink>();
  auto bad = std::make_shared<KeepingSink>();
  ASSERT_TRUE(scheduler->submit(greedy(text_of(9), 8, {good})));
  gate.wait_until_somebody_waits();
  ASSERT_TRUE(scheduler->submit(greedy(text_of(9, 20), 8, {bad})));
  gate.open();
  EXPECT_EQ(bad->wait().reason, StopReason::kError);
  EXPECT_EQ(bad->wait().error, "NaN in layer 3");
  EXPECT_EQ(good->wait().reason, StopReason::kLength);
  EXPECT_EQ(good->ids(), continuation(text_of(9), 8));
  EXPECT_EQ(settled(*scheduler).n_not_finite, 1U);
  // Nothing of it is taken over.
  const Answer again = ask(*scheduler, text_of(9, 20), 8);
  EXPECT_EQ(again.result.n_reused, 0);
  EXPECT_EQ(again.ids, continuation(text_of(9, 20), 8));
}

TEST(Scheduler, AStepThatNeedsWhatIsLostIsTriedOneByOne) {
  FakeModel model(200, 16);
  Gate gate;
  model.on_decode = [&](std::span<const engine::BatchToken> batch) -> Status {
    gate.pass();
    if (!std::ranges::contains(batch, 1, &engine::BatchToken::sequence)) return {};
    return make_error(ErrorCode::kIo, "model.gguf: the file was cut");
  };
  const auto scheduler = start(model, {.n_parallel = 2});
  auto good = std::make_shared<KeepingSink>();
  auto bad = std::make_shared<KeepingSink>();
  ASSERT_TRUE(scheduler->submit(greedy(text_of(9), 8, {good})));
  gate.wait_until_somebody_waits();
  ASSERT_TRUE(scheduler->submit(greedy(text_of(5, 20), 8, {bad})));
  gate.open();
  EXPECT_EQ(bad->wait().error, "model.gguf: the file was cut");
  EXPECT_EQ(good->wait().reason, StopReason::kLength);
  EXPECT_EQ(good->ids(), continuation(text_of(9), 8));
}

TEST(Scheduler, GivesLogprobs) {
  FakeModel model(100, 16);
  const auto scheduler = start(model, {.n_parallel = 1});
  auto sink = std::make_shared<KeepingSink>();
  GenerationRequest request = greedy(text_of(9), 1, {sink});
  request.n_logprobs = 3;
  ASSERT_TRUE(scheduler->submit(request));
  sink->wait();
  const GeneratedToken token = sink->tokens().at(0);
  const std::vector<float> logits = test::logits_behind(text_of(9));
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  ASSERT_EQ(token.top.size(), 3);
  EXPECT_EQ(token.top[0].id, token.id);
  EXPECT_GE(token.top[0].logprob, token.top[1].logprob);
  EXPECT_GE(token.top[1].logprob, token.top[2].logprob);
  for (const auto& [id, logprob] : token.top) {
    EXPECT_NEAR(logprob, logits[id] - std::log(sum), 1e-5);
  }
  EXPECT_EQ(token.logprob, token.top[0].logprob);
}

TEST(Scheduler, ClosesAndFinishesWhatRuns) {
  FakeModel model(100, 16);
  auto sink = std::make_shared<KeepingSink>();
  const auto scheduler = start(model, {.n_parallel = 1});
  ASSERT_TRUE(scheduler->submit(greedy(text_of(9), 20, {sink})));
  scheduler->close();
  const auto late = scheduler->submit(greedy(text_of(9), 20, {std::make_shared<KeepingSink>()}));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, ErrorCode::kCancelled);
  EXPECT_TRUE(scheduler->wait_until_idle(1e9));
  EXPECT_EQ(sink->wait().reason, StopReason::kLength);
}

TEST(Scheduler, ItsEndCancelsEverything) {
  FakeModel model(100000, 16);
  std::vector<std::shared_ptr<KeepingSink>> sinks;
  {
    const auto scheduler = start(model, {.n_parallel = 2});
    for (int i = 0; i < 8; ++i) sinks.push_back(std::make_shared<KeepingSink>());
    for (size_t i = 0; i < sinks.size(); i += 2) {
      ASSERT_TRUE(scheduler->submit(greedy(text_of(9), 90000, {sinks[i], sinks[i + 1]})));
    }
    sinks[0]->wait_for_tokens(1);
    EXPECT_FALSE(scheduler->wait_until_idle(0));
  }
  for (const auto& sink : sinks) {
    EXPECT_TRUE(sink->has_ended());
    EXPECT_EQ(sink->wait().reason, StopReason::kCancelled);
  }
}

TEST(Scheduler, MayStillBeAskedBehindItsEnd) {
  FakeModel model(100000, 16);
  const auto scheduler = start(model, {.n_parallel = 1});
  auto sink = std::make_shared<KeepingSink>();
  const auto id = scheduler->submit(greedy(text_of(9), 90000, {sink}));
  ASSERT_TRUE(id);
  scheduler->end();
  EXPECT_EQ(sink->wait().reason, StopReason::kCancelled);
  scheduler->cancel(*id);
  EXPECT_FALSE(scheduler->submit(greedy(text_of(9), 1, {std::make_shared<KeepingSink>()})));
  EXPECT_FALSE(scheduler->between_steps([] { FAIL(); }));
  EXPECT_TRUE(scheduler->wait_until_idle(1e6));
  EXPECT_EQ(scheduler->status().n_ended[std::to_underlying(StopReason::kCancelled)], 1);
}

TEST(Scheduler, RunsWorkBetweenSteps) {
  FakeModel model(1000, 16);
  const auto scheduler = start(model, {.n_parallel = 1});
  auto sink = std::make_shared<KeepingSink>();
  ASSERT_TRUE(scheduler->submit(greedy(text_of(9), 500, {sink})));
  for (int i = 0; i < 10; ++i) {
    std::thread::id where;
    EXPECT_TRUE(scheduler->between_steps([&] { where = std::this_thread::get_id(); }));
    EXPECT_NE(where, std::this_thread::get_id());
  }
  EXPECT_EQ(sink->wait().n_generated, 500);
}

TEST(Scheduler, StatusSaysWhatItDoes) {
  FakeModel model(1000, 16);
  Gate gate;
  std::atomic<int> n_steps = 0;
  model.on_decode = [&](auto) -> Status {
    if (++n_steps == 4) gate.pass();
    return {};
  };
  const auto scheduler = start(model, {.n_parallel = 2});
  auto sink = std::make_shared<KeepingSink>();
  const auto id = scheduler->submit(greedy(text_of(9), 10, {sink}));
  gate.wait_until_somebody_waits();
  SchedulerStatus status = scheduler->status();
  ASSERT_EQ(status.slots.size(), 2);
  EXPECT_TRUE(status.slots[0].is_busy);
  EXPECT_EQ(status.slots[0].request, *id);
  EXPECT_EQ(status.slots[0].n_prompt, 9);
  EXPECT_EQ(status.slots[0].n_generated, 3);
  EXPECT_FALSE(status.slots[1].is_busy);
  EXPECT_EQ(status.n_ctx, 1000);
  EXPECT_EQ(status.n_used, 11);
  gate.open();
  sink->wait();
  EXPECT_TRUE(scheduler->wait_until_idle(1e9));
  status = settled(*scheduler);
  EXPECT_EQ(status.n_ended[std::to_underlying(StopReason::kLength)], 1);
  EXPECT_EQ(status.n_generated, 10);
  EXPECT_EQ(status.n_decode_steps, 9);
  EXPECT_EQ(status.n_prefill_steps, 1);
}

}  // namespace
}  // namespace hotset::server
