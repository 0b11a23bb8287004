#include "hotset/server/api_requests.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "hotset/server/api_error.h"
#include "hotset/server/api_keys.h"
#include "hotset/server/json_fields.h"
#include "hotset/server/metrics.h"
#include "hotset/server/stop_scanner.h"

namespace hotset::server {
namespace {

constexpr RequestDefaults kDefaults = {};

ChatRequest chat(std::string_view body) {
  const auto request = parse_chat_request(body, kDefaults);
  EXPECT_TRUE(request) << request.error().message;
  return request ? *request : ChatRequest{};
}

// The message of the error; its parameter must be in front.
std::string why_not_chat(std::string_view body) {
  const auto request = parse_chat_request(body, kDefaults);
  EXPECT_FALSE(request) << body;
  if (request) return "";
  EXPECT_EQ(request.error().status, 400);
  EXPECT_TRUE(request.error().param.empty() ||
              request.error().message.starts_with(request.error().param))
      << request.error().message;
  return request.error().message;
}

std::string with_message(std::string_view fields) {
  return R"({"messages":[{"role":"user","content":"hi"}])" + std::string(fields) + "}";
}

TEST(ChatRequest, TakesEveryField) {
  const ChatRequest r = chat(with_message(R"(,
    "model":"m","temperature":0.5,"top_p":0.9,"top_k":7,"min_p":0.1,"presence_penalty":1,
    "frequency_penalty":-1,"repeat_penalty":1.1,"repeat_last_n":-1,"seed":18446744073709551615,
    "max_tokens":5,"max_completion_tokens":6,"n":2,"stop":["a","b"],"logprobs":true,
    "top_logprobs":4,"logit_bias":{"3":-100,"4":2.5},"ignore_eos":true,"cache_prompt":false,
    "stream":true,"stream_options":{"include_usage":true},"user":"x",
    "chat_template_kwargs":{"enable_thinking":false},"reasoning_effort":"low",
    "reasoning_format":"none")"));
  const GenerationSettings& s = r.settings;
  EXPECT_EQ(r.model, "m");
  EXPECT_EQ(s.sampler.temperature, 0.5F);
  EXPECT_EQ(s.sampler.top_p, 0.9F);
  EXPECT_EQ(s.sampler.top_k, 7);
  EXPECT_EQ(s.sampler.min_p, 0.1F);
  EXPECT_EQ(s.sampler.presence_penalty, 1);
  EXPECT_EQ(s.sampler.frequency_penalty, -1);
  EXPECT_EQ(s.sampler.repeat_penalty, 1.1F);
  EXPECT_EQ(s.sampler.repeat_last_n, -1);
  EXPECT_EQ(s.seed, UINT64_MAX);
  EXPECT_EQ(s.max_tokens, 6);
  EXPECT_EQ(s.n_choices, 2);
  EXPECT_EQ(s.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(s.n_logprobs, 4);
  ASSERT_EQ(s.sampler.logit_bias.size(), 2);
  EXPECT_EQ(s.sampler.logit_bias[0].bias, -100);
  EXPECT_TRUE(s.ignore_end);
  EXPECT_FALSE(s.reuse_prompt);
  EXPECT_TRUE(r.stream);
  EXPECT_TRUE(r.include_usage);
  EXPECT_FALSE(r.splits_reasoning);
  EXPECT_EQ(r.variables, R"({"enable_thinking":false,"reasoning_effort":"low"})");
  EXPECT_EQ(r.messages, R"([{"role":"user","content":"hi"}])");
}

TEST(ChatRequest, LeavesDefaultsWhereNothingIsSaid) {
  const RequestDefaults defaults{.sampler = {.temperature = 0.3F, .top_k = 9}, .max_tokens = 77};
  const auto r =
      parse_chat_request(with_message(R"(,"temperature":null,"seed":-1,"top_k":-1)"), defaults);
  ASSERT_TRUE(r) << r.error().message;
  EXPECT_EQ(r->settings.sampler.temperature, 0.3F);
  EXPECT_EQ(r->settings.sampler.top_k, -1);
  EXPECT_EQ(r->settings.max_tokens, 77);
  EXPECT_FALSE(r->settings.seed);
  EXPECT_EQ(r->settings.n_logprobs, -1);
}

TEST(ChatRequest, NamesTheFieldThatIsWrong) {
  EXPECT_EQ(why_not_chat(with_message(R"(,"temperature":"hot")")),
            R"(temperature: found "hot", expected a number from 0 to 100)");
  EXPECT_EQ(why_not_chat(with_message(R"(,"n":17)")), "n: found 17, expected 1 to 16");
  EXPECT_EQ(why_not_chat(with_message(R"(,"n":1.5)")),
            "n: found 1.5, expected a whole number from 1 to 16");
  EXPECT_EQ(why_not_chat(with_message(R"(,"top_p":2)")), "top_p: found 2, expected 0 to 1");
  EXPECT_EQ(why_not_chat(with_message(R"(,"top_p":true)")),
            "top_p: found true, expected a number from 0 to 1");
  EXPECT_EQ(why_not_chat(with_message(R"(,"repeat_penalty":0)")),
            "repeat_penalty: found 0, expected more than 0, at most 100");
  EXPECT_EQ(why_not_chat(with_message(R"(,"repetition_penalty":101)")),
            "repetition_penalty: found 101, expected more than 0, at most 100");
  EXPECT_EQ(why_not_chat(with_message(R"(,"top_k":99999999999999999999)")),
            "top_k: found 1e+20, expected -1 to 2147483647");
  EXPECT_EQ(why_not_chat(with_message(R"(,"seed":1.5)")),
            "seed: found 1.5, expected a whole number");
  EXPECT_EQ(why_not_chat(with_message(R"(,"stream":1)")),
            "stream: found 1, expected true or false");
  EXPECT_EQ(why_not_chat(with_message(R"(,"stop":["a",5])")),
            "stop[1]: found 5, expected a string");
  EXPECT_EQ(why_not_chat(with_message(R"(,"stream_options":{"include_usage":"x"})")),
            R"(stream_options.include_usage: found "x", expected true or false)");
  EXPECT_EQ(why_not_chat(R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})"),
            "messages[0].content[0].text: found null, expected a string");
  EXPECT_EQ(why_not_chat(R"({"messages":[{"role":"user"}]})"),
            "messages[0].content: found null, expected a string or an array of parts");
  EXPECT_EQ(why_not_chat("[1]"), "the body: found an array, expected an object");
  EXPECT_EQ(why_not_chat(std::string(100, '[')), "the body is nested more than 64 levels deep");
  EXPECT_NE(why_not_chat("{").find("no JSON"), std::string::npos);
  for (const char* max : {"1.5", "\"5\"", "-2", "1e10", "true", "[]"}) {
    EXPECT_NE(why_not_chat(with_message(std::string(R"(,"max_tokens":)") + max)), "");
  }
}

TEST(ChatRequest, NamesTheElementThatIsWrong) {
  EXPECT_EQ(why_not_chat(with_message(R"(,"stop":"")")),
            R"(stop: found "", expected a string of 1 to 4096 bytes)");
  EXPECT_EQ(why_not_chat(with_message(R"(,"stop":["a",""])")),
            R"(stop[1]: found "", expected a string of 1 to 4096 bytes)");
  EXPECT_EQ(why_not_chat(R"({"messages":[{"role":"user","content":[]}]})"),
            "messages[0].content: found an empty array, expected a string or an array of parts");
  EXPECT_EQ(why_not_chat(with_message(R"(,"logit_bias":{"x":1})")),
            "logit_bias.x: found \"x\", expected a token id below 2147483647");
  EXPECT_EQ(why_not_chat(with_message(R"(,"logit_bias":[[1,1],[2,"a"]])")),
            R"(logit_bias[1]: found "a", expected a number from -1000000 to 1000000)");
  EXPECT_EQ(why_not_chat(with_message(R"(,"stream_options":{"continuous_usage_stats":true})")),
            "stream_options.continuous_usage_stats: found true, but hotset does not support this "
            "field");
}

TEST(ChatRequest, NullIsAsAbsent) {
  const ChatRequest r = chat(R"({"messages":[
    {"role":"user","content":"a","name":null,"tool_calls":null},
    {"role":"assistant","content":[],"refusal":null,"audio":null,
     "tool_calls":[{"id":"1","type":null,"function":{"name":"f","arguments":null}}]}],
    "tools":[{"type":null,"function":{"name":"f","parameters":null,"strict":null}}]})");
  EXPECT_EQ(r.messages, R"([{"role":"user","content":"a"},{"role":"assistant","content":"",)"
                        R"("tool_calls":[{"id":"1","function":{"name":"f","arguments":{}}}]}])");
  EXPECT_EQ(r.tools, R"([{"function":{"name":"f"}}])");
}

TEST(ChatRequest, KnowsTheNamesOfOtherServers) {
  const ChatRequest r = chat(with_message(
      R"(,"repetition_penalty":1.2,"n_predict":4,"enable_thinking":false,"parallel_tool_calls":false)"));
  EXPECT_EQ(r.settings.sampler.repeat_penalty, 1.2F);
  EXPECT_EQ(r.settings.max_tokens, 4);
  EXPECT_EQ(r.variables, R"({"enable_thinking":false})");
  EXPECT_TRUE(r.one_call);
  EXPECT_EQ(chat(with_message(R"(,"n_predict":4,"max_tokens":5)")).settings.max_tokens, 5);
}

TEST(ChatRequest, TakesTheStepsOfTheSamplerThatAreNamed) {
  const auto sampler = [](const std::string& samplers) {
    return chat(with_message(R"(,"temperature":0.5,"repeat_penalty":1.2,"min_p":0.2,"samplers":)" +
                             samplers))
        .settings.sampler;
  };
  const engine::SamplerOptions all = sampler(
      R"(["penalties","dry","top_n_sigma","top_k","typ_p","top_p","min_p","xtc","temperature"])");
  EXPECT_EQ(all.repeat_penalty, 1.2F);
  EXPECT_EQ(all.min_p, 0.2F);
  EXPECT_EQ(all.temperature, 0.5F);
  EXPECT_EQ(all.top_k, engine::SamplerOptions{}.top_k);
  const engine::SamplerOptions some = sampler(R"(["top_k","temperature"])");
  EXPECT_EQ(some.repeat_penalty, 1);
  EXPECT_EQ(some.top_k, all.top_k);
  EXPECT_EQ(some.top_p, 1);
  EXPECT_EQ(some.min_p, 0);
  EXPECT_EQ(some.temperature, 0.5F);
  EXPECT_EQ(sampler(R"(["top_k"])").temperature, 1);
  for (const char* wrong : {R"(["temperature","top_k"])", R"(["top_k","top_k"])", R"(["mirostat"])",
                            R"("kpt")", "[1]"}) {
    EXPECT_TRUE(
        why_not_chat(with_message(R"(,"samplers":)" + std::string(wrong))).starts_with("samplers"))
        << wrong;
  }
}

TEST(ChatRequest, LeavesRolesThatFewKnowToTheTemplate) {
  const ChatRequest r = chat(R"({"messages":[
    {"role":"ipython","content":"a"},{"role":"narrator","content":"b"}]})");
  ASSERT_EQ(r.other_roles.size(), 1);
  EXPECT_EQ(r.other_roles[0].field, "messages[1].role");
  EXPECT_EQ(r.other_roles[0].role, "narrator");
}

TEST(ChatRequest, NumbersWithoutAFractionAreWhole) {
  EXPECT_EQ(chat(with_message(R"(,"max_tokens":5.0)")).settings.max_tokens, 5);
}

TEST(ChatRequest, JoinsPartsAndTakesCallsApart) {
  const ChatRequest r = chat(R"({"messages":[
    {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
    {"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function",
      "function":{"name":"f","arguments":"{\"x\":1}"}}]},
    {"role":"tool","tool_call_id":"1","content":"ok"}]})");
  const Json messages = *parse_json(r.messages);
  EXPECT_EQ(messages[0]["content"], "a\nb");
  EXPECT_EQ(messages[1]["content"], "");
  EXPECT_EQ(messages[1]["tool_calls"][0]["function"]["arguments"]["x"], 1);
  EXPECT_EQ(messages[2]["tool_call_id"], "1");
}

TEST(ChatRequest, OffersTheToolsThatWereChosen) {
  const std::string tools =
      R"(,"tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}])";
  EXPECT_EQ(parse_json(chat(with_message(tools)).tools)->size(), 2);
  EXPECT_EQ(chat(with_message(tools + R"(,"tool_choice":"none")")).tools, "");
  EXPECT_EQ(parse_json(chat(with_message(tools + R"(,"tool_choice":"required")")).tools)->size(),
            2);
  const Json one = *parse_json(
      chat(with_message(tools + R"(,"tool_choice":{"type":"function","function":{"name":"g"}})"))
          .tools);
  ASSERT_EQ(one.size(), 1);
  EXPECT_EQ(one[0]["function"]["name"], "g");
  EXPECT_EQ(why_not_chat(with_message(R"(,"tool_choice":"required")")),
            R"(tool_choice: found "required", expected none or auto: there are no tools)");
}

TEST(CompletionRequest, TakesEveryFormOfPrompt) {
  const auto prompts = [](std::string_view prompt) {
    const auto r = parse_completion_request(R"({"prompt":)" + std::string(prompt) + "}", kDefaults);
    EXPECT_TRUE(r) << r.error().message;
    return r ? r->prompts : std::vector<Prompt>();
  };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(prompts(R"("a")"), (std::vector<Prompt>{{"prompt", "a"}}));
  EXPECT_EQ(prompts(R"(["a","b"])"), (std::vector<Prompt>{{"prompt[0]", "a"}, {"prompt[1]", "b"}}));
  EXPECT_EQ(prompts("[1,2]"), (std::vector<Prompt>{{"prompt", Ids{1, 2}}}));
  EXPECT_EQ(prompts(R"([[1],"b"])"),
            (std::vector<Prompt>{{"prompt[0]", Ids{1}}, {"prompt[1]", "b"}}));
  for (const char* wrong : {"5", "[]", "[true]", "[1,-1]", "[1,4294967296]", R"([1,"a"])", "{}"}) {
    EXPECT_FALSE(parse_completion_request(R"({"prompt":)" + std::string(wrong) + "}", kDefaults))
        << wrong;
  }
  EXPECT_FALSE(parse_completion_request(R"({"prompt":["a","b"],"n":9})", kDefaults));
  EXPECT_FALSE(parse_native_request(R"({"prompt":["a","b"]})", kDefaults));
}

TEST(CompletionRequest, NamesTheTokenThatIsNone) {
  const RequestDefaults defaults{.n_vocab = 100};
  const auto why_not = [&](const std::string& prompt) {
    const auto r = parse_completion_request(R"({"prompt":)" + prompt + "}", defaults);
    EXPECT_FALSE(r) << prompt;
    if (r) return std::string();
    EXPECT_TRUE(r.error().message.starts_with(r.error().param + ": "));
    return r.error().message;
  };
  EXPECT_EQ(why_not("[1,100]"), "prompt[1]: found 100, expected a token id below 100");
  EXPECT_EQ(why_not("[[1],[1,2,3,99999999]]"),
            "prompt[1][3]: found 99999999, expected a token id below 100");
  EXPECT_EQ(why_not(R"(["a",[]])"),
            "prompt[1]: found an empty array, expected a string or an array of token ids");
  EXPECT_EQ(why_not("[99999999999999999999]"),
            "prompt[0]: found 1e+20, expected a token id below 100");
  EXPECT_TRUE(parse_completion_request(R"({"prompt":[99]})", defaults));
  EXPECT_EQ(parse_detokenize_request(R"({"tokens":[1,100]})", 100).error().message,
            "tokens[1]: found 100, expected a token id below 100");
}

TEST(CompletionRequest, EchoAsksForThePromptsLogprobs) {
  const auto wants = [](std::string_view fields) {
    return parse_completion_request(R"({"prompt":"a")" + std::string(fields) + "}", kDefaults)
        ->settings.prompt_logprobs;
  };
  EXPECT_TRUE(wants(R"(,"echo":true,"logprobs":0)"));
  EXPECT_FALSE(wants(R"(,"echo":true)"));
  EXPECT_FALSE(wants(R"(,"logprobs":5)"));
}

TEST(CompletionRequest, KnowsTheNamesOfGgmlServers) {
  const auto r = parse_native_request(
      R"({"prompt":"a","n_predict":7,"n_probs":3,"logit_bias":[[5,false],[6,1]],"stop":"x"})",
      kDefaults);
  ASSERT_TRUE(r) << r.error().message;
  EXPECT_EQ(r->settings.max_tokens, 7);
  EXPECT_EQ(r->settings.n_logprobs, 3);
  EXPECT_EQ(r->settings.stop, (std::vector<std::string>{"x"}));
  ASSERT_EQ(r->settings.sampler.logit_bias.size(), 2);
  EXPECT_TRUE(std::isinf(r->settings.sampler.logit_bias[0].bias));
}

TEST(StopScanner, CutsAtTheFirstStopHoweverTheTextComes) {
  const std::string text = "one two three four";
  for (size_t n = 1; n <= text.size(); ++n) {
    StopScanner scanner({"three", "x"});
    std::string out;
    for (size_t i = 0; i < text.size(); i += n) out += scanner.push(text.substr(i, n));
    EXPECT_EQ(out, "one two ") << n;
    EXPECT_TRUE(scanner.found());
    EXPECT_EQ(scanner.finish(), "");
  }
}

TEST(StopScanner, TheStopThatEndsFirstCounts) {
  const auto stopped = [](const std::vector<std::string>& pieces, std::vector<std::string> stops) {
    StopScanner scanner(std::move(stops));
    std::string out;
    for (const std::string& piece : pieces) out += scanner.push(piece);
    return out + "|" + scanner.stop();
  };
  for (const auto& pieces :
       std::vector<std::vector<std::string>>{{"OPQ"}, {"O", "P", "Q"}, {"OP", "Q"}, {"O", "PQ"}}) {
    EXPECT_EQ(stopped(pieces, {"OPQ", "P"}), "O|P");
    EXPECT_EQ(stopped(pieces, {"PQ", "OPQ", "Q"}), "|OPQ");
    EXPECT_EQ(stopped(pieces, {"Q", "PQ", "OPQR"}), "O|PQ");
  }
}

TEST(StopScanner, HoldsBackWhatMayBecomeAStop) {
  StopScanner scanner({"<end>"});
  EXPECT_EQ(scanner.push("a<e"), "a");
  EXPECT_EQ(scanner.push("n"), "");
  EXPECT_EQ(scanner.push("x<"), "<enx");
  EXPECT_FALSE(scanner.found());
  EXPECT_EQ(scanner.finish(), "<");
}

TEST(ApiKeys, AcceptsEachInEveryForm) {
  const ApiKeys keys({"alpha", "b"});
  EXPECT_TRUE(keys.needed());
  EXPECT_FALSE(ApiKeys({}).needed());
  for (const char* good : {"alpha", "b"}) EXPECT_TRUE(keys.accept(good));
  for (const char* bad : {"", "alph", "alphaa", "c", "bb", "Alpha"}) EXPECT_FALSE(keys.accept(bad));
  EXPECT_TRUE(keys.accept_headers("Bearer alpha", ""));
  EXPECT_TRUE(keys.accept_headers("BEARER  b", ""));
  EXPECT_TRUE(keys.accept_headers("", "alpha"));
  EXPECT_TRUE(keys.accept_headers("Basic dTphbHBoYQ==", ""));  // u:alpha
  for (const char* bad :
       {"Bearer", "Bearer ", "Basic", "Basic YWxwaGE=", "alpha", "Digest alpha"}) {
    EXPECT_FALSE(keys.accept_headers(bad, "")) << bad;
  }
}

TEST(Metrics, EscapesLabels) {
  const std::string text = metrics_text({.version = "1", .model = "a\"b\\c\nd"});
  EXPECT_NE(text.find("model=\"a\\\"b\\\\c\\\\x0ad\""), std::string::npos);
}

TEST(ErrorBody, MessagesAreShortLinesOfText) {
  const Json body =
      *parse_json(error_body({.message = "a\n\x1B[2J\xC2\x9B" + std::string(1 << 20, 'n')}));
  const std::string message = body["error"]["message"];
  EXPECT_TRUE(message.starts_with("a\\x0a\\x1b[2J\\u009bnnn")) << message.substr(0, 99);
  EXPECT_LT(message.size(), 5000U);
}

TEST(ErrorBody, HasOpenaisShape) {
  const Json body = *parse_json(error_body({.status = 401, .message = "no \xff", .code = "k"}));
  EXPECT_EQ(body["error"]["type"], "authentication_error");
  EXPECT_EQ(body["error"]["code"], "k");
  EXPECT_TRUE(body["error"]["param"].is_null());
  // Never a number: clients have it as a text.
  EXPECT_TRUE((*parse_json(error_body({.status = 400})))["error"]["code"].is_null());
}

}  // namespace
}  // namespace hotset::server
