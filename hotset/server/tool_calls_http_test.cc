// Tools over real HTTP: the server as it is, listening, with a model that says what the test wants,
// token by token, in the ways of several families.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "hotset/server/api_server.h"
#include "hotset/server/batch_model.h"
#include "hotset/server/generation_job.h"
#include "hotset/server/scheduler.h"
#include "hotset/text/builtin_chat_templates.h"
#include "hotset/text/text_test_util.h"

namespace hotset::server {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using Json = nlohmann::json;

constexpr int32_t kContext = 4000;

// Says a script, a token at each row of logits that is wanted, and then that it has ended. For one
// request at a time.
class ScriptedModel final : public BatchModel {
 public:
  ScriptedModel(int32_t n_vocab, int32_t end_id) : n_vocab_(n_vocab), end_id_(end_id) {}

  // Requires: no request runs.
  void say(std::vector<int32_t> script) {
    script_ = std::move(script);
    n_said_ = 0;
  }
  const std::vector<int32_t>& tokens() const { return tokens_; }

  int32_t n_ctx() const override { return kContext; }
  int32_t n_vocab() const override { return n_vocab_; }
  int32_t n_ubatch() const override { return 512; }
  int32_t n_free() const override { return kContext - static_cast<int32_t>(tokens_.size()); }
  Result<engine::DecodeResult> decode(std::span<const engine::BatchToken> batch) override {
    logits_.clear();
    for (const engine::BatchToken& t : batch) {
      HOTSET_CHECK(std::cmp_equal(t.position, tokens_.size()));
      tokens_.push_back(t.token);
      if (!t.want_logits) continue;
      const size_t begin = logits_.size();
      logits_.resize(begin + static_cast<size_t>(n_vocab_), 0.0F);
      const int32_t id = n_said_ < script_.size() ? script_[n_said_++] : end_id_;
      logits_[begin + static_cast<size_t>(id)] = 20;
    }
    return engine::DecodeResult{.logits = logits_};
  }
  void forget(engine::SequenceId, int32_t begin, int32_t) override {
    tokens_.resize(std::min(tokens_.size(), static_cast<size_t>(begin)));
  }
  void share_prefix(engine::SequenceId, engine::SequenceId, int32_t) override {}
  int32_t next_position(engine::SequenceId) const override {
    return static_cast<int32_t>(tokens_.size());
  }
  Bytes saved_bytes(engine::SequenceId) const override { return {}; }
  Result<std::vector<uint8_t>> save(engine::SequenceId) const override {
    return make_error(ErrorCode::kUnsupported, "save");
  }
  Status restore(engine::SequenceId, std::span<const uint8_t>) override {
    return make_error(ErrorCode::kUnsupported, "restore");
  }

 private:
  int32_t n_vocab_;
  int32_t end_id_;
  std::vector<int32_t> script_;
  size_t n_said_ = 0;
  std::vector<int32_t> tokens_;  // of the only sequence
  std::vector<float> logits_;
};

// A way to write replies.
struct Family {
  const char* name = "";  // of the built-in template
  std::vector<std::string> signs = {};
  std::string end = {};
  std::string thinks = {};  // "Rome, of course." is what it thinks; empty: it does not tell
  std::string says = {};    // "I ask."; empty: it does not say anything beside calls
  std::string call = {};    // asks for the weather in "Ro\"me" for 3 days
};

constexpr std::string_view kArguments = R"({"city": "Ro\"me é", "days": 3})";

std::vector<Family> families() {
  const std::string arguments(kArguments);
  return {
      {.name = "chatml",
       .signs = {"<|im_start|>", "<think>", "</think>", "<tool_call>", "</tool_call>"},
       .end = "<|im_end|>",
       .thinks = "<think>\nRome, of course.\n</think>\n\n",
       .says = "I ask.\n",
       .call = "<tool_call>\n{\"name\": \"weather\", \"arguments\": " + arguments +
               "}\n</tool_call>\n"},
      // The signs are letters for this vocabulary.
      {.name = "chatml",
       .signs = {"<|im_start|>"},
       .end = "<|im_end|>",
       .says = "I ask.\n",
       .call =
           "<tool_call>{\"name\": \"weather\", \"arguments\": " + arguments + "}</tool_call>\n"},
      {.name = "gpt-oss",
       .signs = {"<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|constrain|>"},
       .end = "<|return|>",
       .thinks = "<|channel|>analysis<|message|>Rome, of course.<|end|><|start|>assistant",
       .says = "<|channel|>final<|message|>I ask.<|end|><|start|>assistant",
       .call = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>" +
               arguments + "<|call|>"},
      {.name = "mistral",
       .signs = {"[INST]", "[/INST]", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"},
       .end = "</s>",
       .says = "I ask.",
       .call = "[TOOL_CALLS]weather[ARGS]" + arguments},
      {.name = "llama3",
       .signs = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"},
       .end = "<|eot_id|>",
       .call = "{\"name\": \"weather\", \"parameters\": " + arguments + "}"},
  };
}

text::Tokenizer vocabulary(const Family& family) {
  text::TokenizerSpec spec = text::byte_level_spec({});
  for (const std::string& sign : family.signs) {
    add_token(spec, sign, text::TokenType::kControl);
  }
  spec.eos = static_cast<int32_t>(spec.tokens.size());
  add_token(spec, family.end, text::TokenType::kControl);
  return *text::Tokenizer::create(spec);
}

// A server of a family, and a client of it.
class Served {
 public:
  explicit Served(const Family& family)
      : tokenizer_(vocabulary(family)),
        template_(
            *text::ChatTemplate::create(std::string(*text::builtin_chat_template(family.name)),
                                        text::chat_template_options(tokenizer_))),
        model_(tokenizer_.n_tokens(), *tokenizer_.find_token(family.end)),
        server_({}) {
    auto scheduler = Scheduler::create(
        model_, {.n_parallel = 1, .end_ids = {*tokenizer_.find_token(family.end)}});
    HOTSET_CHECK(scheduler.has_value());
    scheduler_ = *std::move(scheduler);
    HOTSET_CHECK(server_.listen("127.0.0.1", 0).has_value());
    server_.serve({.scheduler = scheduler_.get(),
                   .tokenizer = &tokenizer_,
                   .chat_template = &template_,
                   .name = "scripted"});
    client_ = std::make_unique<httplib::Client>("127.0.0.1", server_.port());
    client_->set_read_timeout(60);
  }
  Served(const Served&) = delete;
  Served& operator=(const Served&) = delete;
  ~Served() {
    client_.reset();
    server_.end();
    scheduler_->end();
  }

  // The body of the answer to a chat request with `more` in it; the model says `reply`.
  std::string post(std::string_view reply, const Json& more, int status = 200) {
    model_.say(*tokenizer_.encode(reply, {.parse_special = true}));
    Json request = {{"messages", {{{"role", "user"}, {"content", "Rain?"}}}},
                    {"temperature", 0},
                    {"max_tokens", 1000}};
    request.update(more);
    const auto response = client_->Post("/v1/chat/completions", request.dump(), "application/json");
    if (!response) {
      ADD_FAILURE() << httplib::to_string(response.error());
      return "{}";
    }
    EXPECT_EQ(response->status, status) << response->body;
    return response->body;
  }
  Json chat(std::string_view reply, const Json& more) {
    return Json::parse(post(reply, more))["choices"][0];
  }
  // The chunks of a stream, without the last line.
  std::vector<Json> stream(std::string_view reply, Json more) {
    more["stream"] = true;
    const std::string body = post(reply, more);
    std::vector<Json> chunks;
    bool is_done = false;
    for (size_t begin = 0; begin < body.size();) {
      const size_t end = body.find("\n\n", begin);
      if (end == std::string::npos) {
        ADD_FAILURE() << body.substr(begin);
        break;
      }
      const std::string event = body.substr(begin, end - begin);
      begin = end + 2;
      EXPECT_THAT(event, StartsWith("data: "));
      EXPECT_FALSE(is_done);
      is_done = event == "data: [DONE]";
      if (!is_done) chunks.push_back(Json::parse(event.substr(6)));
    }
    EXPECT_TRUE(is_done);
    return chunks;
  }
  // What the model was given last, and has said.
  std::string prompt_and_reply() {
    std::string text;
    scheduler_->between_steps(
        [&] { text = *tokenizer_.decode(model_.tokens(), {.render_special = true}); });
    return text;
  }

 private:
  text::Tokenizer tokenizer_;
  text::ChatTemplate template_;
  ScriptedModel model_;
  std::unique_ptr<Scheduler> scheduler_;
  ApiServer server_;
  std::unique_ptr<httplib::Client> client_;
};

Json tools() {
  return Json::parse(R"([
    {"type": "function", "function": {"name": "weather", "description": "what it will be like",
      "parameters": {"type": "object", "properties": {"city": {"type": "string"},
                                                      "days": {"type": "integer"}}}}},
    {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}])");
}

void expect_weather_call(const Json& call) {
  EXPECT_EQ(call["type"], "function");
  EXPECT_FALSE(call["id"].get<std::string>().empty());
  EXPECT_EQ(call["function"]["name"], "weather");
  EXPECT_EQ(Json::parse(call["function"]["arguments"].get<std::string>()), Json::parse(kArguments));
}

// A stream put together again, as clients do.
struct Joined {
  std::string content;
  std::string reasoning;
  std::vector<Json> calls;
  std::string finish_reason;
  bool thinks_first = true;
};

Joined join(const std::vector<Json>& chunks) {
  Joined sum;
  for (const Json& chunk : chunks) {
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    EXPECT_EQ(chunk["id"], chunks[0]["id"]);
    const Json& choice = chunk["choices"][0];
    const Json& delta = choice["delta"];
    EXPECT_EQ(delta.contains("role"), &chunk == chunks.data());
    if (delta.contains("reasoning_content")) {
      sum.thinks_first &= sum.content.empty() && sum.calls.empty();
      sum.reasoning += delta["reasoning_content"].get<std::string>();
    }
    if (delta.contains("content")) sum.content += delta["content"].get<std::string>();
    for (const Json& part : delta.value("tool_calls", Json::array())) {
      const auto index = part["index"].get<size_t>();
      EXPECT_LE(index, sum.calls.size());
      if (index == sum.calls.size()) {
        sum.calls.push_back(part);
        continue;
      }
      auto& arguments = sum.calls[index]["function"]["arguments"].get_ref<std::string&>();
      arguments += part["function"].value("arguments", "");
    }
    EXPECT_EQ(choice["finish_reason"].is_null(), &chunk != &chunks.back());
    if (!choice["finish_reason"].is_null()) sum.finish_reason = choice["finish_reason"];
  }
  return sum;
}

class ToolCalls : public testing::TestWithParam<size_t> {
 protected:
  const Family family_ = families()[GetParam()];
  Served served_{family_};
  const std::string reply_ = family_.thinks + family_.says + family_.call;
  const std::string thoughts_ = family_.thinks.empty() ? "" : "Rome, of course.";
  const std::string said_ = family_.says.empty() ? "" : "I ask.";
};

TEST_P(ToolCalls, ComeAsJsonApartFromWhatIsSaidAndThought) {
  for (const Json& choice : {Json(), Json("auto"), Json("required")}) {
    const Json answer = served_.chat(reply_, {{"tools", tools()}, {"tool_choice", choice}});
    EXPECT_EQ(answer["finish_reason"], "tool_calls");
    const Json& message = answer["message"];
    EXPECT_EQ(message["role"], "assistant");
    EXPECT_EQ(message["content"], said_.empty() ? Json() : Json(said_));
    EXPECT_EQ(message.value("reasoning_content", ""), thoughts_);
    ASSERT_EQ(message["tool_calls"].size(), 1U);
    expect_weather_call(message["tool_calls"][0]);
    EXPECT_THAT(served_.prompt_and_reply(), HasSubstr("what it will be like"));
  }
}

TEST_P(ToolCalls, ComeInStreamsWithoutTheirSigns) {
  const std::vector<Json> chunks = served_.stream(reply_, {{"tools", tools()}});
  const Joined sum = join(chunks);
  EXPECT_EQ(sum.finish_reason, "tool_calls");
  EXPECT_EQ(sum.content, said_);
  EXPECT_EQ(sum.reasoning, thoughts_);
  ASSERT_EQ(sum.calls.size(), 1U);
  expect_weather_call(sum.calls[0]);
  EXPECT_TRUE(sum.thinks_first);
  // Token by token, not all at the end.
  EXPECT_GE(chunks.size(), said_.size() + thoughts_.size());
}

TEST_P(ToolCalls, AreTextToWhomNoToolsWereOffered) {
  for (const Json& more : {Json::object(), Json{{"tools", tools()}, {"tool_choice", "none"}}}) {
    const Json answer = served_.chat(reply_, more);
    EXPECT_EQ(answer["finish_reason"], "stop");
    EXPECT_FALSE(answer["message"].contains("tool_calls"));
    EXPECT_THAT(served_.prompt_and_reply(), Not(HasSubstr("what it will be like")));
    // All of it, to whom the call is as well; and none of it is a thought.
    EXPECT_THAT(answer["message"]["content"].get<std::string>(), HasSubstr("weather"));
    EXPECT_THAT(answer["message"]["content"].get<std::string>(), HasSubstr("Ro\\\"me"));
    EXPECT_EQ(answer["message"].value("reasoning_content", ""), thoughts_);
    const Joined sum = join(served_.stream(reply_, more));
    EXPECT_EQ(Json(sum.content), answer["message"]["content"]);
    EXPECT_EQ(sum.finish_reason, "stop");
    EXPECT_TRUE(sum.calls.empty());
  }
}

TEST_P(ToolCalls, ThatAreCutOffAreNone) {
  const auto at = reply_.size() - family_.call.size() / 3;
  const std::string reply = reply_.substr(0, at);
  const Json answer = served_.chat(reply, {{"tools", tools()}});
  EXPECT_EQ(answer["finish_reason"], "stop");
  EXPECT_FALSE(answer["message"].contains("tool_calls"));
  const Joined sum = join(served_.stream(reply, {{"tools", tools()}}));
  EXPECT_TRUE(sum.calls.empty());
  EXPECT_EQ(Json(sum.content), answer["message"]["content"]);
  const Json shorter = served_.chat(reply_, {{"tools", tools()}, {"max_tokens", 4}});
  EXPECT_EQ(shorter["finish_reason"], "length");
}

TEST_P(ToolCalls, AndTheirResultsGoBackToTheModel) {
  const Json answer = served_.chat(reply_, {{"tools", tools()}});
  Json messages = {{{"role", "user"}, {"content", "Rain?"}}, answer["message"]};
  messages.push_back({{"role", "tool"},
                      {"tool_call_id", answer["message"]["tool_calls"][0]["id"]},
                      {"content", "sunny spells"}});
  const std::string says =
      family_.signs[0] == "<|start|>" ? "<|channel|>final<|message|>No." : "No.";
  const Json next = served_.chat(says, {{"tools", tools()}, {"messages", messages}});
  EXPECT_EQ(next["message"]["content"], "No.");
  EXPECT_EQ(next["finish_reason"], "stop");
  EXPECT_THAT(served_.prompt_and_reply(), HasSubstr("sunny spells"));
}

INSTANTIATE_TEST_SUITE_P(Families, ToolCalls, testing::Range(size_t{0}, families().size()),
                         [](const auto& p) {
                           std::string name = families()[p.param].name;
                           std::ranges::replace(name, '-', '_');
                           return name + std::to_string(p.param);
                         });

TEST(ToolCallsOfOneReply, HaveIdsAndNumbersOfTheirOwn) {
  const Family family = families()[0];
  Served served(family);
  const std::string clock = "<tool_call>\n{\"name\": \"clock\", \"arguments\": {}}\n</tool_call>\n";
  const std::string reply = family.call + clock + family.call;
  const auto expect_calls = [](const Json& calls) {
    ASSERT_EQ(calls.size(), 3U);
    expect_weather_call(calls[0]);
    EXPECT_EQ(calls[1]["function"]["name"], "clock");
    EXPECT_EQ(calls[1]["function"]["arguments"], "{}");
    expect_weather_call(calls[2]);
    EXPECT_NE(calls[0]["id"], calls[1]["id"]);
    EXPECT_NE(calls[0]["id"], calls[2]["id"]);
    EXPECT_NE(calls[1]["id"], calls[2]["id"]);
  };
  expect_calls(served.chat(reply, {{"tools", tools()}})["message"]["tool_calls"]);
  expect_calls(join(served.stream(reply, {{"tools", tools()}})).calls);
}

TEST(ToolChoice, NamesTheOnlyToolThatIsShown) {
  Served served(families()[0]);
  const Json clock = {{"type", "function"}, {"function", {{"name", "clock"}}}};
  served.chat("No.", {{"tools", tools()}, {"tool_choice", clock}});
  EXPECT_THAT(served.prompt_and_reply(), HasSubstr("\"clock\""));
  EXPECT_THAT(served.prompt_and_reply(), Not(HasSubstr("\"weather\"")));
}

TEST(ToolChoice, OfAToolThatIsNotThereIsRefused) {
  Served served(families()[0]);
  const Json other = {{"type", "function"}, {"function", {{"name", "other"}}}};
  EXPECT_THAT(served.post("", {{"tools", tools()}, {"tool_choice", other}}, 400),
              HasSubstr("tool_choice"));
  EXPECT_THAT(served.post("", {{"tool_choice", "required"}}, 400), HasSubstr("tool_choice"));
}

TEST(Reasoning, StaysInTheTextWhereTheClientAsksForThat) {
  for (const Family& family : families()) {
    if (family.thinks.empty()) continue;
    SCOPED_TRACE(family.name);
    Served served(family);
    const Json none = {{"reasoning_format", "none"}};
    const Json answer = served.chat(family.thinks + family.says, none);
    EXPECT_FALSE(answer["message"].contains("reasoning_content"));
    const auto content = answer["message"]["content"].get<std::string>();
    EXPECT_THAT(content, HasSubstr("Rome, of course."));
    EXPECT_THAT(content, HasSubstr("I ask."));
    const Joined sum = join(served.stream(family.thinks + family.says, none));
    EXPECT_EQ(sum.reasoning, "");
    EXPECT_EQ(sum.content, content);
  }
}

// Whoever is at fault: a limit of ours is none of the caller's, and what is, is named.
TEST(ChatRendering, SaysWhoseLimitItIs) {
  Served served(families()[0]);
  std::string deep;
  for (int i = 0; i < 70000; ++i) deep += R"({"a":)";
  deep += "1" + std::string(70000, '}');
  const Json call = {{"type", "function"}, {"function", {{"name", "f"}, {"arguments", deep}}}};
  const Json messages = {{{"role", "user"}, {"content", "x"}},
                         {{"role", "assistant"}, {"tool_calls", {call}}}};
  EXPECT_THAT(served.post("", {{"messages", messages}}, 400),
              HasSubstr("messages[1].tool_calls[0].function.arguments"));

  const std::string long_text(100 * kContext, 'x');
  const Json error = Json::parse(
      served.post("", {{"messages", {{{"role", "user"}, {"content", long_text}}}}}, 400))["error"];
  EXPECT_EQ(error["param"], "messages");
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("at least"));

  const auto narrow =
      text::ChatTemplate::create("{{ messages[0].content * 100 }}", {.limits = {.memory = mib(8)}});
  ASSERT_TRUE(narrow) << narrow.error().message;
  const auto refused = render_chat(
      *narrow, {.messages = R"([{"role": "user", "content": ")" + long_text + R"("}])"}, "");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, 503);
  EXPECT_THAT(refused.error().message, HasSubstr("8.0 MiB"));
}

TEST(ToolCallsOverHttp, OneCallIsAllWhereMoreAreNotWanted) {
  const Family family = families()[0];
  Served served(family);
  const std::string reply = family.says + family.call + family.call;
  const Json more = {{"tools", tools()}};
  EXPECT_EQ(served.chat(reply, more)["message"]["tool_calls"].size(), 2);
  const Json one = {{"tools", tools()}, {"parallel_tool_calls", false}};
  const Json choice = served.chat(reply, one);
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 1);
  expect_weather_call(choice["message"]["tool_calls"][0]);
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  const Joined streamed = join(served.stream(reply, one));
  EXPECT_EQ(streamed.calls.size(), 1);
  EXPECT_EQ(streamed.finish_reason, "tool_calls");
}

}  // namespace
}  // namespace hotset::server
